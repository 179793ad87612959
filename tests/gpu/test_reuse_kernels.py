"""FlashInfer's kernels against the torch reference, and copies to the host and back, on a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

from kvflow.reuse import KV, Rotary, rotate, rotate_exactly  # noqa: E402
from kvflow.reuse.correct import Corrector  # noqa: E402
from kvflow.reuse.keeping import Keeper  # noqa: E402


def table(positions: int, rotary_dim: int) -> torch.Tensor:
    frequencies = 10000.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("dim", "rotary_dim"), [(128, 128), (128, 64), (64, 64)])
def test_keys_are_turned_as_the_reference_turns_them(neox: bool, dim: int, rotary_dim: int) -> None:
    rotary = Rotary(table(9000, rotary_dim).cuda(), neox=neox)
    source = torch.arange(37, 37 + 300)
    rotation = rotary.between(source, source + 8000)
    keys = torch.randn(4, 300, 8, dim, dtype=torch.bfloat16, device="cuda")
    wanted = rotate_exactly(keys, rotation, neox=neox)
    assert (rotate(keys, rotation, neox=neox).float() - wanted).abs().max() <= 2**-7 * wanted.abs().max()


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_kv_is_written_into_its_slots_and_nowhere_else(page_tokens: int) -> None:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from kvflow.patches.kv_pool import Pool

    pool = MHATokenToKVPool(1024, page_tokens, torch.bfloat16, 8, 128, 3, "cuda", False)
    slots = torch.randperm(1000, device="cuda")[:200]
    rows = torch.zeros(4, 512, dtype=torch.int32, device="cuda")
    rows[2, 100:300] = slots.int()
    runner = SimpleNamespace(token_to_kv_pool=pool, req_to_token_pool=SimpleNamespace(req_to_token=rows))
    before = [layer.clone() for layer in (*pool.k_buffer, *pool.v_buffer)]
    kv = KV(*torch.randn(2, 3, 200, 8, 128, dtype=torch.bfloat16, device="cuda"))
    writer = Pool(runner)
    writer.write(2, 100, kv)
    back = writer.read(2, 100, 300)
    assert torch.equal(back.keys, kv.keys)
    assert torch.equal(back.values, kv.values)
    others = torch.ones(len(before[0]), dtype=torch.bool, device="cuda")
    others[slots] = False
    for old, new in zip(before, (*pool.k_buffer, *pool.v_buffer), strict=True):
        assert torch.equal(old[others], new[others])


def test_a_long_text_goes_to_the_host_and_back_a_portion_at_a_time() -> None:
    kv = KV(*torch.randn(2, 8, 8192, 8, 128, dtype=torch.bfloat16, device="cuda"))
    keeper = Keeper(Corrector(Rotary(table(9000, 128).cuda(), neox=True)))
    most_tokens = 0

    def read(start: int, end: int) -> KV:
        nonlocal most_tokens
        most_tokens = max(most_tokens, end - start)
        part = kv.span(start, end)
        return KV(part.keys.clone(), part.values.clone())

    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    kept, _ = keeper.text(0, 8192, read)
    keeper.homes(0, 8192, read)
    assert most_tokens == 1024
    assert torch.cuda.max_memory_allocated() - before_bytes < kv.keys.nbytes + kv.values.nbytes
    assert kept.keys.is_pinned()
    back = kept.span(16, 5000).to(kv.keys.device)
    assert torch.equal(back.keys, kv.keys[:, 16:5000])
    assert torch.equal(back.values, kv.values[:, 16:5000])
