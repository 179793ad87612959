"""Batches of which only the end is left to compute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvflow.patches.rows import beginning_later


def batch(*rows: tuple[int, int], logprob_starts: list[int] | None = None) -> Any:
    """A prefill batch with a prefix and so many tokens in each row; a token is 100 times its row, plus its position."""
    tokens = [100 * row + prefix + place for row, (prefix, length) in enumerate(rows) for place in range(length)]
    return SimpleNamespace(
        input_ids=torch.tensor(tokens),
        out_cache_loc=torch.tensor(tokens) + 1000,
        prefill_input_ids_cpu=torch.tensor(tokens),
        prefix_lens=[prefix for prefix, _ in rows],
        extend_lens=[length for _, length in rows],
        extend_num_tokens=len(tokens),
        extend_logprob_start_lens=logprob_starts,
    )


def test_rows_begin_later_and_end_where_they_did() -> None:
    whole = batch((0, 10), (4, 3), (2, 5))
    later = beginning_later(whole, [7, 4, 6])
    assert later.input_ids.tolist() == [7, 8, 9, 104, 105, 106, 206]
    assert later.out_cache_loc.tolist() == [1000 + token for token in later.input_ids.tolist()]
    assert later.prefill_input_ids_cpu.tolist() == later.input_ids.tolist()
    assert (later.prefix_lens, later.extend_lens, later.extend_num_tokens) == ([7, 4, 6], [3, 3, 1], 7)
    assert later.extend_logprob_start_lens is None
    assert (whole.prefix_lens, whole.extend_lens) == ([0, 4, 2], [10, 3, 5]), "SGLang goes on with the whole"


@pytest.mark.parametrize(
    ("logprob_start", "expected"),
    [
        (10, 3),  # of no token of its prompt: none of the rest
        (9, 2),  # retracted: its last token is one of its answer
        (7, 0),
    ],
)
def test_log_probabilities_are_of_the_same_tokens_as_before(logprob_start: int, expected: int) -> None:
    later = beginning_later(batch((0, 10), (4, 3), logprob_starts=[logprob_start, 3]), [7, 4])
    assert later.extend_logprob_start_lens == [expected, 3]
