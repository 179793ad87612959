"""Checks of the quality gate under way in a scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from kvflow.patches.checks import Checks
from kvflow.reuse import Method, Mode, Plan, Prompt, QualityGate, Slot


def prompt(*names: str) -> Prompt:
    """One with slots of these names, of 40 tokens each."""
    return Prompt(
        namespace="",
        workflow_type="review",
        agent="critic",
        tokens=torch.arange(100),
        slots=tuple(Slot(start=40 * n, end=40 * n + 40, name=name) for n, name in enumerate(names)),
        method=Method(mode=Mode.ROTATE),
    )


def plan(name: str) -> Plan:
    """Of a prompt into which that slot's text was put, to be checked."""
    return Plan(exact_tokens=0, reason="", slots=(("", "review", name),), check=(("", "review", name),))


def request(name: str) -> Any:
    return SimpleNamespace(rid=name, output_ids=[1], cache_salt=None, extra_key=None)


def test_texts_that_were_computed_are_put_into_no_copy_that_judges_others() -> None:
    checks = Checks(QualityGate(), None)
    checks.begin(request("r"), prompt("good", "closed"), plan("good"), "rotate")
    _, spliced = checks.due()
    assert [name for _, _, name in spliced["asked"]["slots"]] == ["good"]


def test_checks_that_have_begun_are_finished_before_others_begin() -> None:
    checks = Checks(QualityGate(), None)
    for number in range(30):
        checks.begin(request(f"r{number}"), prompt("text"), plan("text"), "rotate")
    offers = checks.due()
    assert len(offers) == 2 * 16
    for offer in offers[:2]:
        checks.followed(offer["asked"]["check"], torch.zeros(4))
        checks.finished(offer["asked"]["check"])
    assert (checks.compared, checks.under_way) == (1, 15)
    for number in range(100):  # of those that are left the copies never come
        checks.begin(request(f"later {number}"), prompt("text"), plan("text"), "rotate")
    assert 2 <= len(checks.due()) <= 2 * 3
    assert checks.under_way == 16


def test_requests_of_one_id_are_checked_apart() -> None:
    checks = Checks(QualityGate(), None)
    for _ in range(2):
        checks.begin(request("r"), prompt("text"), plan("text"), "rotate")
    keys = [offer["asked"]["check"][0] for offer in checks.due()]
    assert len(keys) == 4
    assert len(set(keys)) == checks.under_way == 2
