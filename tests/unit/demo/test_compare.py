"""Which calls of two arms went apart."""

from __future__ import annotations

from kvflow.demo.compare import differing_calls, identical_tokens
from kvflow.demo.measure import RoundRecord, StepRecord


def record(*calls: tuple[tuple[int, ...], tuple[int, ...]]) -> RoundRecord:
    made = RoundRecord(0, 16)
    for number, (prompt, output) in enumerate(calls):
        step = StepRecord(
            round=0,
            workflow="w",
            agent="a",
            start_s=float(number),
            latency_s=1.0,
            prompt_tokens=len(prompt),
            device_tokens=0,
            host_tokens=0,
            recomputed_tokens=0,
            new_tokens=len(prompt),
            output=output,
            prompt=prompt,
        )
        made.steps.append(step)
    return made


def test_equal_answers_are_no_difference() -> None:
    one = record(((1,), (5, 6)), ((1, 5, 6), (7, 8)))
    assert identical_tokens([one], [one])
    assert not differing_calls([one], [one])


def test_the_call_that_began_it_is_named_and_those_that_followed_from_it_are_not() -> None:
    one = record(((1,), (5, 6)), ((1, 5, 6), (7, 8)))
    other = record(((1,), (5, 9)), ((1, 5, 9), (2, 2)))
    assert not identical_tokens([one], [other])
    (found,) = differing_calls([one], [other])
    assert found["position"] == 1
    assert found["prompt"] == (1,)
    assert [call["output"] for call in found["calls"]] == [(5, 6), (5, 9)]
