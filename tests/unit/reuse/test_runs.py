"""Which runs of spliced prompts are computed before the rest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvflow.errors import ReuseUnsupportedError
from kvflow.patches.splicing import _paged_attention, runs_before_rest
from kvflow.reuse import Graft, cut

FIRST = cut([Graft(start=10, end=30), Graft(start=40, end=60)], 0, 80)
SECOND = cut([Graft(start=5, end=25)], 5, 30)
REPAIRS = {0: [[(12, 14), (20, 21)], [(40, 41)]], 2: [[(24, 25)]]}


def test_what_stands_between_grafts_and_what_is_repaired_is_computed_in_order() -> None:
    assert runs_before_rest([FIRST, None, SECOND], {}) == [(0, 0, 10), (0, 30, 40)]
    expected = [(0, 0, 10), (0, 12, 14), (0, 20, 21), (0, 30, 41), (2, 24, 25)]
    repaired = runs_before_rest([FIRST, None, SECOND], REPAIRS)
    assert repaired == expected, "runs side by side are one, and no token is computed that was not chosen"


def test_there_may_be_nothing_to_compute_before_the_rest() -> None:
    assert runs_before_rest([None, SECOND], {}) == []
    assert runs_before_rest([], {}) == []


def test_flashinfer_reads_all_from_pages_or_reuse_is_refused() -> None:
    paged = SimpleNamespace(use_paged=False, prefill_backend="fa2")  # of FlashInfer's kernels
    runner = SimpleNamespace(prefill_attention_backend_str="flashinfer", attn_backend=paged)
    assert _paged_attention(runner) is paged
    runner.attn_backend = SimpleNamespace(prefill_backend=paged)
    assert _paged_attention(runner) is paged
    runner.attn_backend = SimpleNamespace()
    with pytest.raises(ReuseUnsupportedError, match="may write KV after"):
        _paged_attention(runner)


@pytest.mark.parametrize("name", ["torch_native", "triton", "fa3", "fa4"])
def test_attention_that_writes_first_needs_nothing(name: str) -> None:
    runner = SimpleNamespace(prefill_attention_backend_str=name, attn_backend=SimpleNamespace(use_paged=False))
    assert _paged_attention(runner) is None


@pytest.mark.parametrize("name", ["aiter", "trtllm_mha", "flex_attention"])
def test_attention_of_which_nothing_is_known_is_refused_by_name(name: str) -> None:
    runner = SimpleNamespace(prefill_attention_backend_str=name, attn_backend=SimpleNamespace())
    with pytest.raises(ReuseUnsupportedError, match=f"{name}.*--prefill-attention-backend"):
        _paged_attention(runner)
