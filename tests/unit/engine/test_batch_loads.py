"""Which loads a batch waits for, rather than its requests in the queue."""

from __future__ import annotations

import pytest

from kvflow.engine import BatchLoads
from kvflow.policy import ServingCosts

WAITED_TOKENS = 8


@pytest.fixture
def batch() -> BatchLoads:
    return BatchLoads(ServingCosts(load_token_s=1e-3, prefill_step_s=WAITED_TOKENS / 2 * 1e-3))


def test_what_takes_two_short_batches_is_waited_for_in_the_queue(batch: BatchLoads) -> None:
    assert not batch.join(WAITED_TOKENS)
    assert batch.join(WAITED_TOKENS - 1)


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
