"""Which of the quality bench's questions need more than the text that they ask about."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

QUALITY = Path(__file__).parents[3] / "bench" / "quality"


@pytest.mark.parametrize(
    ("asked", "bound"), [("literal", False), ("near", False), ("of role", True), ("far", True), ("of what is", True)]
)
def test_a_value_is_bound_if_it_comes_from_the_role_or_another_text(
    monkeypatch: pytest.MonkeyPatch, asked: str, bound: bool
) -> None:
    monkeypatch.syspath_prepend(str(QUALITY))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    tasks = importlib.import_module("tasks")
    literal, near, of_role, far, of_what_is = tasks.NAMES[10:15]
    statements = {
        "literal": tasks.Statement(literal, tasks.DIGITS[3], 0),
        "near": tasks.Statement(near, tasks.reference(literal), 0),
        "of role": tasks.Statement(of_role, tasks.reference(tasks.ROLE_NAMES[0]), 0),
        "far": tasks.Statement(far, tasks.reference(literal), 1),
        "of what is": tasks.Statement(of_what_is, tasks.reference(of_role), 0),
    }
    puzzle = tasks.Puzzle(tuple(statements.values()), ((), ()))
    assert puzzle.bound(statements[asked]) is bound
