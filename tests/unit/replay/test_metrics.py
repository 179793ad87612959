"""Rounds in numbers, and what two arms can be told apart by."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kvflow.replay.metrics import difference, measures, values
from kvflow.replay.record import CallRecord, Round, ToolRecord, WorkflowRecord


def played(
    arm: str,
    index: int,
    factor: float = 1.0,
    noise: float = 0.0,
    flows: int = 12,
    luck: float = 1.0,
    seed: int = 0,
) -> Round:
    """A round in which workflow n takes 10 + n seconds, times factors; its noise is its own."""
    drawn = random.Random(f"{arm} {index} {factor} {seed}")
    seen = Round(arm=arm, index=index, seed=index, span_s=40.0)
    for number in range(flows):
        name = f"{index}.{number}"
        took_s = (10 + number) * factor * luck * (1 + drawn.uniform(-noise, noise))
        seen.workflows.append(
            WorkflowRecord(workflow=name, arrived_s=1.0, started_s=2.0, ended_s=1.0 + took_s, failed_calls=0)
        )
        seen.calls.append(
            CallRecord(
                workflow=name,
                thread="main",
                agent="a",
                call="c",
                asked_s=2.0,
                first_s=2.0 + 0.1 * took_s,
                ended_s=2.0 + 0.5 * took_s,
                queue_s=0.05 * took_s,
                longest_pause_s=0.02 * took_s,
                prompt_tokens=100,
                output_tokens=11,
                device_tokens=60,
                host_tokens=20,
                recomputed_tokens=10,
            )
        )
        seen.tools.append(ToolRecord(workflow=name, thread="main", tool="t", start_s=5.0, end_s=6.0))
    return seen


def test_numbers_are_those_of_the_records() -> None:
    found = measures([played("a", 0)])
    assert found["completion_mean_s"] == pytest.approx(15.5)
    assert found["ttft_mean_s"] == pytest.approx(1.55)
    assert found["latency_mean_s"] == pytest.approx(7.75)
    assert found["inter_token_mean_s"] == pytest.approx(0.4 * 15.5 / 10)
    assert found["pause_p99_s"] == pytest.approx(0.02 * 21, rel=0.01)
    assert (found["workflows"], found["calls"], found["failed_calls"]) == (12, 12, 0)
    assert (found["recomputed_tokens"], found["loaded_tokens"]) == (120, 240)
    assert found["workflows_per_h"] == pytest.approx(12 * 90)
    assert found["queued_s"] == pytest.approx(0.775)
    assert found["prefilled_s"] == pytest.approx(0.775)
    assert found["decoded_s"] == pytest.approx(6.2)
    assert found["tools_s"] == pytest.approx(1.0)
    assert "stall_s" not in found, "nobody measured it"


def test_waits_that_the_server_does_not_tell_are_no_waits_of_none() -> None:
    seen = played("a", 0)
    for call in seen.calls:
        call.queue_s = None
    found = measures([seen])
    assert "queued_s" not in found
    assert "queue_mean_s" not in found
    assert found["prefilled_s"] == pytest.approx(1.55)


def test_a_wait_after_the_first_token_is_no_part_of_the_time_before_it() -> None:
    seen = played("a", 0, flows=2)
    first, second = seen.calls
    first.asked_s, first.queue_s, first.first_s, first.ended_s = 2.0, 5.0, 3.0, 10.0
    second.asked_s, second.queue_s, second.first_s, second.ended_s = 2.0, 0.0, 4.0, 6.0
    found = measures([seen])
    assert found["queued_s"] == pytest.approx(2.5)
    assert found["prefilled_s"] == pytest.approx(1.0), "all of the second call's, none of the first one's"
    assert found["decoded_s"] == pytest.approx((7.0 - 4.0 + 2.0) / 2)
    assert (first.queued_before_s, second.queued_before_s) == (1.0, 0.0)


def test_workflows_of_which_a_call_failed_do_not_count() -> None:
    seen = played("a", 0)
    seen.workflows[11].failed_calls = 1
    seen.calls[11].error = "status 500"
    found = measures([seen])
    assert found["failed_calls"] == 1
    assert found["completion_mean_s"] == pytest.approx(15.0)
    assert "0.11" not in values([seen], "completion_s")[0]


def test_neither_do_their_other_calls_and_their_tools() -> None:
    seen = played("a", 0)
    slow, cheap = seen.calls[11], seen.calls[10]
    seen.workflows[11].failed_calls = 1
    seen.calls.append(replace(slow, call="d", error="status 500"))
    slow.first_s, slow.ended_s, slow.recomputed_tokens = 50.0, 100.0, 1000
    seen.tools[11].end_s = 100.0
    found = measures([seen])
    assert found["latency_p99_s"] <= cheap.ended_s - cheap.asked_s
    assert found["tools_s"] == pytest.approx(1.0)
    assert (found["whole_workflows"], found["workflows"]) == (11, 12)
    assert found["recomputed_tokens"] == 110 + 1000 + 10, "the server computed all of them"
    assert found["prompt_tokens"] == 13 * 100
    assert found["decoded_s"] == pytest.approx(6.0)
    assert found["calls"] == 13, "all that were made"


@pytest.mark.parametrize(("flows", "rounds", "told"), [(1, 5, False), (2, 3, True), (6, 2, False)])
def test_a_few_pairs_or_rounds_tell_nothing(flows: int, rounds: int, told: bool) -> None:
    base, slower = ([played("a", index, factor, flows=flows) for index in range(rounds)] for factor in (1.0, 2.0))
    found = difference(values(base, "completion_s"), values(slower, "completion_s"))
    assert found is not None
    assert (found.pairs, found.rounds) == (flows * rounds, rounds)
    assert (found.low_s > 0, found.distinct) == (True, told)


def test_an_arm_that_is_faster_is_told_from_chance() -> None:
    base = [played("a", index, noise=0.1) for index in range(4)]
    faster = [played("b", index, factor=0.8, noise=0.1) for index in range(4)]
    found = difference(values(base, "completion_s"), values(faster, "completion_s"))
    assert found is not None
    assert found.distinct
    assert found.ratio_low < found.ratio < found.ratio_high
    assert found.ratio == pytest.approx(0.8, abs=0.05)
    assert found.pairs == 48


def test_two_equal_arms_are_not() -> None:
    told = 0
    for seed in range(20):
        base = [played("a", index, noise=0.3, seed=seed) for index in range(3)]
        same = [played("b", index, noise=0.3, seed=seed) for index in range(3)]
        found = difference(values(base, "completion_s"), values(same, "completion_s"))
        assert found is not None
        told += found.distinct
    assert told <= 3


def test_luck_that_a_whole_round_shares_widens_the_interval() -> None:
    """Rounds that differ count as so many observations, however many workflows each has."""
    lucky = [played("b", index, luck=luck) for index, luck in enumerate((0.7, 1.3, 0.7, 1.3))]
    found = difference(values([played("a", i) for i in range(4)], "completion_s"), values(lucky, "completion_s"))
    assert found is not None
    assert not found.distinct
    assert found.ratio_high - found.ratio_low > 0.3


def test_three_rounds_are_told_by_their_own_spread() -> None:
    """A bootstrap of three values is too narrow."""
    base = [played("a", index) for index in range(3)]
    lucky = [played("b", index, luck=luck) for index, luck in enumerate((0.93, 0.96, 0.99))]
    found = difference(values(base, "completion_s"), values(lucky, "completion_s"))
    assert found is not None
    assert found.tells
    assert not found.distinct
    assert found.ratio_low < 0.9
    assert found.ratio_high > 1.0


def test_what_is_told_goes_by_the_interval_that_is_shown() -> None:
    """Rounds of different programs: in seconds they differ by what in parts they do not, and the other way round."""
    sizes, factors = (2.0, 1.0, 1.9), (0.37, 0.55, 0.365)
    base = [played("a", index, luck=size) for index, size in enumerate(sizes)]
    arm = [
        played("a", index, factor, luck=size) for index, (size, factor) in enumerate(zip(sizes, factors, strict=True))
    ]
    found = difference(values(base, "completion_s"), values(arm, "completion_s"))
    assert found is not None
    assert found.low_s < 0 < found.high_s
    assert found.ratio_high < 1
    assert found.distinct


def test_arms_without_a_workflow_in_common_are_not_compared() -> None:
    assert difference(values([played("a", 0)], "ttft_s"), values([played("b", 1)], "ttft_s")) is None
