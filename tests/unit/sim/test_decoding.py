"""Requests that decode together."""

from __future__ import annotations

import simpy

from kvflow.engine import PromptClaim
from kvflow.sim.context import Pager
from kvflow.sim.decoding import Decoding
from kvflow.sim.request import Request
from kvflow.trace import Piece

PROMPT_TOKENS = 64


def request() -> Request:
    pager = Pager(16, 1)
    context = pager.extend(pager.empty(), 0, [Piece("prompt", PROMPT_TOKENS)])
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
    done = simpy.Environment().event()
    return Request(claim=claim, prompt=context, whole=context, output_tokens=8, near=None, arrived_s=0.0, done=done)


def test_requests_end_after_as_many_steps_as_they_have_tokens_left() -> None:
    decoding, short, long = Decoding(), request(), request()
    decoding.join(long, 7)
    assert decoding.advance(2) == []
    decoding.join(short, 3)
    assert decoding.steps_left == 3
    assert decoding.context_tokens == 2 * PROMPT_TOKENS + 2
    assert decoding.advance(3) == [(short, 3)]
    assert decoding.context_tokens == PROMPT_TOKENS + 5
    assert decoding.advance(2) == [(long, 7)]
    assert (len(decoding), decoding.context_tokens) == (0, 0)


def test_a_request_that_lost_its_memory_ends_by_its_new_turn_alone() -> None:
    decoding, first, second = Decoding(), request(), request()
    decoding.join(first, 9)
    decoding.join(second, 4)
    decoding.advance(1)
    assert decoding.latest is second
    assert decoding.leave(second) == 1
    assert decoding.steps_left == 8, "what it would have ended by is forgotten"
    decoding.join(second, 6)
    assert decoding.steps_left == 6
    assert decoding.advance(6) == [(second, 6)]
