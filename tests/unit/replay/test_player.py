"""What counts as computed again is told by when prompts were computed, not by when their answers ended."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from kvflow.replay.arms import Arm
from kvflow.replay.connection import Answer, Connection
from kvflow.replay.contents import Contents
from kvflow.replay.player import Player, arrive
from kvflow.replay.record import CallRecord, Round
from kvflow.replay.work import Pace
from kvflow.trace import Program, programs
from kvflow.trace.synth import SynthOptions, synthetic_trace

FIXED_TOKENS, PAGE_TOKENS = 64, 16


class Overtaking(Connection):
    """The first to ask is the first whose prompt is computed, and the last to be answered."""

    def __init__(self, client: httpx.AsyncClient, found_tokens: int) -> None:
        super().__init__(client, Arm(name="a"), free=True, began_s=time.perf_counter())
        self._found_tokens = found_tokens
        self._asked = 0
        self._second_answered = asyncio.Event()

    async def ask(
        self,
        prompt: Sequence[int],
        answer: array[int],
        hints: list[dict[str, Any]],
        seen: CallRecord,
        computed: Callable[[], None] = lambda: None,
    ) -> Answer | None:
        """Answer without a server; the second prompt finds something of the first."""
        self._asked += 1
        first = self._asked == 1
        computed()
        if first:
            await self._second_answered.wait()
        self._second_answered.set()
        return Answer(tokens=answer, cached={"device": 0 if first else self._found_tokens})


def recomputed(found_tokens: int) -> list[int]:
    """Two programs with the same fixed prompt: what each computed again."""
    options = SynthOptions(workflows=2, agents=1, turns=1, fixed_tokens=FIXED_TOKENS, task_tokens=32, output_tokens=8)
    work: list[Program] = list(programs(synthetic_trace("chain", options)[1]))

    async def play() -> Round:
        seen = Round(arm="a", index=0, seed=0)
        async with httpx.AsyncClient() as client:
            player = Player(Overtaking(client, found_tokens), seen, Contents(), Pace(), PAGE_TOKENS)
            await arrive(player, [(0.0, program, program.start.workflow) for program in work], None)
        return seen

    calls = sorted(asyncio.run(play()).calls, key=lambda call: call.workflow)
    assert len(calls) == len(work)
    return [call.recomputed_tokens for call in calls]


def test_who_is_overtaken_by_one_that_found_its_prompt_has_computed_nothing_again() -> None:
    assert recomputed(FIXED_TOKENS) == [0, 0]


def test_who_finds_nothing_of_what_was_computed_computes_it_again() -> None:
    assert recomputed(0) == [0, FIXED_TOKENS]


def test_a_part_that_is_found_is_not_computed_again() -> None:
    assert recomputed(PAGE_TOKENS) == [0, FIXED_TOKENS - PAGE_TOKENS]
