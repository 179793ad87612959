"""What is played becomes a document."""

from __future__ import annotations

import pytest

from kvflow.replay.arms import parse_arms
from kvflow.replay.document import document
from kvflow.replay.run import Plan
from kvflow.replay.work import Load
from kvflow.sim.workload import Workload
from kvflow.trace import SynthOptions, programs, synthetic_trace
from tests.unit.replay.test_broken_off import a_round


@pytest.mark.parametrize(("at_once", "told"), [(None, 3), (2, 2), (100, 3)])
def test_no_more_programs_are_said_to_run_at_once_than_there_are(at_once: int | None, told: int) -> None:
    workload = Workload(list(programs(synthetic_trace("chain", SynthOptions(workflows=3, turns=1))[1])))
    plan = Plan(arms=tuple(parse_arms(["lru"])), engine=None, load=Load(at_once=at_once))
    assert document([(plan, [a_round("lru", 0)])], workload)["loads"][0]["at_once"] == told
