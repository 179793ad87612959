"""How near putting KV in comes to copying it: rotation, offsets and paged writes against the bandwidth of a copy.

KV of one text in the geometry of an 8B model (32 layers, 8 KV heads of 128, bfloat16) unless said otherwise. On CUDA
FlashInfer's kernels rotate and write, and texts come from pinned host memory; on the CPU it is torch throughout. Bytes
are those that have to move: read once, written once.

Usage: python bench/bench_reuse_kernels.py [--tokens 256 1024 4096] [--layers 32] [--repeats 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

from kvflow.cli.circumstances import circumstances
from kvflow.patches.cpu import declare_torchvision_ops
from kvflow.patches.kv_pool import Pool
from kvflow.reuse import KV, Graft, Rotary, rotate
from kvflow.reuse.anchors import Anchor
from kvflow.reuse.correct import Corrector
from kvflow.reuse.segments import Origin, Segment

HEADS, DIM, THETA = 8, 128, 500_000.0
MOVED = 1024
"""Positions by which keys are moved."""


def rotary(positions: int, device: torch.device) -> Rotary:
    """The rotary embedding of Llama 3, without its scaling."""
    frequencies = THETA ** -(torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    return Rotary(torch.cat((angles.cos(), angles.sin()), dim=1).float().to(device), neox=True)


def some_kv(layers: int, tokens: int, dtype: torch.dtype) -> KV:
    """KV in host memory, pinned where there is a GPU."""
    pinned = torch.cuda.is_available()
    keys, values = (torch.empty(layers, tokens, HEADS, DIM, dtype=dtype, pin_memory=pinned) for _ in range(2))
    return KV(keys.normal_(), values.normal_())


def pool_of(layers: int, tokens: int, dtype: torch.dtype, device: torch.device) -> Pool:
    """SGLang's KV pool, with one request in slots that lie scattered."""
    declare_torchvision_ops()
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pool = MHATokenToKVPool(2 * tokens, 1, dtype, HEADS, DIM, layers, str(device), False)
    slots = torch.randperm(2 * tokens)[: tokens + MOVED].to(device=device, dtype=torch.int32)
    row = torch.zeros(1, tokens + MOVED, dtype=torch.int32, device=device)
    row[0, MOVED:] = slots[:tokens]
    return Pool(SimpleNamespace(token_to_kv_pool=pool, req_to_token_pool=SimpleNamespace(req_to_token=row)))


def seconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median time of a call, after two that do not count."""
    taken: list[float] = []
    for _ in range(repeats + 2):
        _settle(device)
        start_s = time.perf_counter()
        work()
        _settle(device)
        taken.append(time.perf_counter() - start_s)
    return median(taken[2:])


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(layers: int, tokens: int, repeats: int, device: torch.device) -> list[dict[str, Any]]:
    """Time what happens to one text."""
    dtype = torch.bfloat16
    table = rotary(tokens + 2 * MOVED, device)
    corrector, pool = Corrector(table), pool_of(layers, tokens, dtype, device)
    held = some_kv(layers, tokens, dtype)
    there = KV(held.keys.to(device), held.values.to(device))
    rotation = table.between(torch.arange(tokens), torch.arange(MOVED, MOVED + tokens))
    segment = Segment(
        tokens=torch.zeros(tokens, dtype=torch.int64),
        kv=held,
        position=0,
        origin=Origin(workflow_type="", agent=""),
        exact=True,
        value_sketch=torch.zeros(tokens, 1),
    )
    anchors = [Anchor(start=0, tokens=(), value_sketch=segment.value_sketch, offset=held) for _ in range(2)]

    def graft(count: int) -> Graft:
        weighted = tuple((anchor, 1 / count) for anchor in anchors[:count])
        return Graft(start=MOVED, end=MOVED + tokens, segment=segment, anchors=weighted)

    works: dict[str, tuple[Callable[[], object], int]] = {
        "copy on the device": (lambda: (there.keys.clone(), there.values.clone()), 2 * there.nbytes),
        "copy from the host": (lambda: held.to(device), 2 * held.nbytes),
        "rotate keys": (lambda: rotate(there.keys, rotation, neox=True), 2 * there.keys.nbytes),
        "write pages": (lambda: pool.write(0, MOVED, there), 2 * there.nbytes),
        "rotated text": (lambda: pool.write(0, MOVED, corrector.fill(graft(0), device)), 2 * held.nbytes),
        "with one anchor": (lambda: pool.write(0, MOVED, corrector.fill(graft(1), device)), 3 * held.nbytes),
        "with two anchors": (lambda: pool.write(0, MOVED, corrector.fill(graft(2), device)), 4 * held.nbytes),
    }
    if device.type == "cpu":
        del works["copy from the host"]
    rows = []
    for name, (work, moved) in works.items():
        taken_s = seconds(work, repeats, device)
        rows.append(
            {"work": name, "tokens": tokens, "seconds": taken_s, "bytes": moved, "gb_per_s": moved / taken_s / 1e9}
        )
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = [row for tokens in options.tokens for row in measure(options.layers, tokens, options.repeats, device)]
    for row in rows:
        print(
            f"{row['work']:20} {row['tokens']:6} tokens {row['seconds'] * 1e3:9.3f} ms  "
            f"{row['seconds'] / row['tokens'] * 1e6:7.2f} µs a token  {row['gb_per_s']:7.2f} GB/s"
        )
    if options.json:
        record = {"bench": "reuse_kernels", **circumstances(), "device": str(device), "layers": options.layers}
        options.json.write_text(json.dumps(record | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
