"""The running batch."""

from __future__ import annotations

import simpy

from kvflow.engine import PromptClaim
from kvflow.sim.context import Pager
from kvflow.sim.request import Request
from kvflow.sim.running import RunningBatch
from kvflow.trace import Piece

PROMPT_TOKENS = 64


def request() -> Request:
    pager = Pager(16, 1)
    context = pager.extend(pager.empty(), 0, [Piece("prompt", PROMPT_TOKENS)])
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
    done = simpy.Environment().event()
    return Request(claim=claim, prompt=context, whole=context, output_tokens=8, near=None, arrived_s=0.0, done=done)


def test_requests_end_after_as_many_steps_as_they_have_tokens_left() -> None:
    batch, short, long = RunningBatch(), request(), request()
    batch.join(long, 7)
    assert batch.advance(2) == []
    batch.join(short, 3)
    assert batch.steps_left() == 3
    assert batch.context_tokens == 2 * PROMPT_TOKENS + 2
    assert batch.advance(3) == [(short, 3)]
    assert batch.context_tokens == PROMPT_TOKENS + 5
    assert batch.advance(2) == [(long, 7)]
    assert (len(batch), batch.context_tokens) == (0, 0)


def test_a_request_that_lost_its_memory_ends_by_its_new_turn_alone() -> None:
    batch, first, second = RunningBatch(), request(), request()
    batch.join(first, 9)
    batch.join(second, 4)
    batch.advance(1)
    batch.join(third := request(), 4)
    assert batch.least() is third
    assert batch.leave(third) == 0
    assert batch.least() in (first, second)
    assert batch.leave(second) == 1
    assert batch.steps_left() == 8, "what it would have ended by is forgotten"
    batch.join(second, 6)
    assert batch.steps_left() == 6
    assert batch.advance(6) == [(second, 6)]
