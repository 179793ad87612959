"""Which loads a batch waits for, rather than its requests in the queue."""

from __future__ import annotations

import pytest

from kvflow.engine import BatchLoads
from kvflow.policy import ServingCosts

STEP_TOKENS = 8


@pytest.fixture
def batch() -> BatchLoads:
    return BatchLoads(ServingCosts(load_token_s=1e-3, decode_step_s=STEP_TOKENS * 1e-3))


def test_what_takes_a_decode_step_is_waited_for_in_the_queue(batch: BatchLoads) -> None:
    assert not batch.join(STEP_TOKENS)
    assert batch.join(STEP_TOKENS - 1)


def test_loads_of_one_batch_count_together(batch: BatchLoads) -> None:
    assert batch.join(5)
    assert not batch.join(3)
    assert batch.join(2)
    batch.formed()
    assert batch.join(3)


def test_what_is_under_way_counts_once(batch: BatchLoads) -> None:
    assert batch.join(2, behind_tokens=3)
    assert batch.join(2, behind_tokens=3)
    assert not batch.join(1, behind_tokens=3)
