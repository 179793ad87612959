"""Large requests that there is no memory for, and who goes before them."""

from __future__ import annotations

import pytest

from kvflow.engine.large import LargeRequests
from kvflow.engine.typical import TypicalWork
from tests.unit.engine.test_programs import Table
from tests.unit.engine.test_turns import Queue

_LONGEST_S = 60.0


@pytest.fixture
def table() -> Table:
    """One request runs on a device of 100,000 tokens, and two wait, of which one is large."""
    made = Table()
    made.start("runs", 20_000)
    for name, tokens in {"large": 40_000, "small": 1_000}.items():
        made.ask(name, tokens)
    assert sorted(made.allowed("large", "small")) == ["large", "small"]
    return made


def test_others_go_before_a_large_one_until_one_that_runs_has_ended(table: Table) -> None:
    assert table.programs.refused("large")
    assert table.allowed("large", "small") == ["small"]
    assert table.allowed("large", "small") == ["small"]
    table.answer("runs")
    assert "large" in table.allowed("large", "small")


def test_one_that_loses_its_memory_gives_it_back_as_well(table: Table) -> None:
    assert table.programs.refused("large")
    table.programs.retracted("runs")
    assert "large" in table.allowed("runs", "large", "small")


def test_it_is_asked_again_if_nothing_runs_that_could_give_back_memory(table: Table) -> None:
    table.answer("runs")
    assert table.programs.refused("large")
    assert "large" in table.allowed("large", "small")


def test_nobody_goes_before_a_small_one_or_one_without_a_claim(table: Table) -> None:
    assert not table.programs.refused("small")
    assert not table.programs.refused("somebody")
    assert sorted(table.allowed("large", "small", "somebody")) == ["large", "small", "somebody"]


@pytest.mark.parametrize(("waited_s", "overtaken"), [(_LONGEST_S - 1, True), (_LONGEST_S, False)])
def test_nobody_goes_before_one_that_has_waited_for_a_minute(table: Table, waited_s: float, overtaken: bool) -> None:
    table.coordinator.claims.clock.now_s += waited_s
    assert table.programs.refused("large") == overtaken
    assert ("large" in table.allowed("large", "small")) != overtaken


def test_where_programs_take_hours_nobody_waits_for_longer_than_a_minute() -> None:
    queue, typical = Queue(large=40_000), TypicalWork()
    typical.ended(7200.0)
    large = LargeRequests(queue.coordinator.claims, typical)
    large.without([], 100_000)
    queue.coordinator.claims.clock.now_s = _LONGEST_S - 1
    assert large.refused("large", queue.asked["large"])
    queue.coordinator.claims.clock.now_s = _LONGEST_S
    assert not large.refused("large", queue.asked["large"])


def test_where_programs_take_less_time_nobody_waits_for_long(table: Table) -> None:
    table.answer("small")
    table.end("small")
    table.coordinator.claims.clock.now_s += 6.0
    table.allowed("large")
    assert not table.programs.refused("large")


def test_nobody_goes_before_one_that_has_lost_its_memory_in_the_middle_of_its_answer(table: Table) -> None:
    table.programs.started("large")
    table.programs.retracted("large")
    assert not table.programs.refused("large")


def test_nobody_goes_before_one_whose_workflow_has_ended_since_nobody_tells_the_time(table: Table) -> None:
    table.end("large")
    assert not table.programs.refused("large")
