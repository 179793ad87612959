"""What ``kvflow doctor`` says of the SGLang that is installed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvflow.cli.doctor import check_seams
from kvflow.patches.catalog import SEAMS
from kvflow.patches.seams import problem_of

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def test_every_seam_holds_in_a_process_of_its_own() -> None:
    states, problem = check_seams()
    assert not problem
    assert len(states) == len(SEAMS)
    assert [state for state in states if not state["holds"]] == []


def test_a_seam_whose_target_is_gone_does_not_hold() -> None:
    assert problem_of(replace(SEAMS[0], target=SEAMS[0].target + "_renamed"))
