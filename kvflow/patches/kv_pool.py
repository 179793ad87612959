"""Keys and values in SGLang's pool: reading and writing a request's own, and what they are rotated with."""

from __future__ import annotations

import logging
from typing import Any

import torch

from kvflow.errors import ReuseUnsupportedError
from kvflow.reuse import KV, Rotary, rotate
from kvflow.reuse.rotation import KERNEL_DIMS

logger = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TEST_POSITIONS = (3, 250, 17, 0, 96)
_TOLERANCE = 8.0
"""Roundings of the model's dtype by which our rotation may differ from the model's own."""


class Pool:
    """The KV pool of one rank.

    Args:
        runner: SGLang's ``ModelRunner``.

    Raises:
        ReuseUnsupportedError: its layout is not one whose slots can be written one by one.
    """

    def __init__(self, runner: Any) -> None:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        pool = runner.token_to_kv_pool
        if type(pool) is not MHATokenToKVPool:
            raise ReuseUnsupportedError(f"KV pools of type {type(pool).__name__} (MLA, sliding window, quantised, …)")
        if pool.kv_cache_layout != "nhd":
            raise ReuseUnsupportedError(f"KV layout {pool.kv_cache_layout}")
        if pool.store_dtype not in _DTYPES or pool.dtype != pool.store_dtype:
            raise ReuseUnsupportedError(f"KV of type {pool.dtype}")
        assert pool.k_buffer is not None
        assert pool.v_buffer is not None
        self._keys: list[torch.Tensor] = list(pool.k_buffer)
        self._values: list[torch.Tensor] = list(pool.v_buffer)
        self._rows = runner.req_to_token_pool
        self.device = self._keys[0].device
        self._by_kernel = self.device.type == "cuda" and self._kernel_writes()

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return len(self._keys)

    def read(self, row: int, start: int, end: int, layers: slice = slice(None)) -> KV:
        """Copy the KV of a request's tokens [start, end)."""
        slots = self._rows.req_to_token[row, start:end].long()
        keys = torch.stack([layer[slots] for layer in self._keys[layers]])
        values = torch.stack([layer[slots] for layer in self._values[layers]])
        return KV(keys, values)

    def write(self, row: int, start: int, kv: KV) -> None:
        """Put KV into the slots of a request's tokens from ``start`` on, rounded to the pool's dtype."""
        slots = self._rows.req_to_token[row, start : start + len(kv)]
        if self._by_kernel:
            self._append(slots, kv)
            return
        slots = slots.long()
        for layer, (keys, values) in enumerate(zip(self._keys, self._values, strict=True)):
            keys[slots] = kv.keys[layer].to(keys.dtype)
            values[slots] = kv.values[layer].to(values.dtype)

    def _kernel_writes(self) -> bool:
        """Whether FlashInfer's kernel writes KV of this shape; it is compiled now, and not while requests wait.

        Tried on slot 0, which is no token's: SGLang pads with it.
        """
        keys, values = self._keys[0], self._values[0]
        if keys.shape != values.shape or keys.shape[-1] not in KERNEL_DIMS:
            return False
        ones = keys.new_ones((len(self._keys), 1, *keys.shape[1:]))
        problem: Exception | None = None
        try:
            self._append(torch.zeros(1, dtype=torch.int64, device=self.device), KV(ones, ones))
        except Exception as error:  # nothing compiles it here, or it does not take this pool
            problem = error
        wrote = all(bool((layer[0] == 1).all()) for layer in (*self._keys, *self._values))
        for layer in (*self._keys, *self._values):
            layer[0] = 0
        if not wrote:
            logger.warning("kvflow: torch writes what is reused, since FlashInfer does not: %r", problem)
        return wrote and problem is None

    def _append(self, slots: torch.Tensor, kv: KV) -> None:
        """Write through FlashInfer's paged append; a page of SGLang's is so many consecutive pages of one token."""
        from flashinfer.page import append_paged_kv_cache  # pyright: ignore[reportMissingImports]

        tokens = len(kv)
        positions = torch.arange(tokens, dtype=torch.int32, device=self.device)
        zeros = torch.zeros(tokens, dtype=torch.int32, device=self.device)
        bounds = torch.tensor([0, tokens], dtype=torch.int32, device=self.device)
        last = torch.ones(1, dtype=torch.int32, device=self.device)
        pages = slots.to(torch.int32)
        for layer, (keys, values) in enumerate(zip(self._keys, self._values, strict=True)):
            append_paged_kv_cache(
                kv.keys[layer].to(keys.dtype).contiguous(),
                kv.values[layer].to(values.dtype).contiguous(),
                zeros,
                positions,
                (keys.unsqueeze(1), values.unsqueeze(1)),
                pages,
                bounds,
                last,
                kv_layout="NHD",
            )


def rotary_of(runner: Any) -> Rotary:
    """Find a model's rotary embedding, and test that turning its keys gives what the model would have computed.

    Raises:
        ReuseUnsupportedError: it has none, several, or one that we do not know how to apply, or does not end with it;
            or sliding windows, since layers without one may have an embedding that they do not apply.
    """
    from sglang.srt.layers.radix_attention import RadixAttention

    attentions = (module for module in runner.model.modules() if isinstance(module, RadixAttention))
    if any((attention.sliding_window_size or -1) > 0 for attention in attentions):
        raise ReuseUnsupportedError("a model with sliding windows")
    if any(kind.__name__ in _NORMED_LATER for kind in type(runner.model).__mro__):
        raise ReuseUnsupportedError("a model that normalises keys after their rotary embedding")
    modules = [
        module
        for name, module in runner.model.named_modules(remove_duplicate=False)
        if name.rpartition(".")[2] == "rotary_emb"
    ]
    layers, size = runner.token_to_kv_pool.layer_num, runner.token_to_kv_pool.head_dim
    if len(modules) != layers or len(set(map(id, modules))) != 1:
        raise ReuseUnsupportedError(f"a model whose {layers} layers do not share one rotary embedding")
    embedding = modules[0]
    kind = type(embedding).__name__
    if kind not in _KNOWN:
        raise ReuseUnsupportedError(f"rotary embedding {kind}")
    if embedding.head_size != size:  # it is given a part of each key, and we do not know which
        raise ReuseUnsupportedError(f"a rotary embedding of {embedding.head_size} of the {size} dimensions of a key")
    table = embedding.cos_sin_cache
    rotary = Rotary(table, neox=bool(embedding.is_neox_style))
    heads = 2
    error = _turning_error(embedding, rotary, heads, size, runner.dtype)
    if not error <= _TOLERANCE * torch.finfo(runner.dtype).eps:
        raise ReuseUnsupportedError(f"rotary embedding {kind}: keys turned by us differ from the model's by {error:g}")
    return rotary


_KNOWN = frozenset(
    {"RotaryEmbedding", "LinearScalingRotaryEmbedding", "Llama3RotaryEmbedding", "YaRNScalingRotaryEmbedding"}
)
"""Their table is the same for prompts of every length."""
_NORMED_LATER = frozenset({"HunYuanMoEV1ForCausalLM"})
"""The norm has a weight for each dimension: keys that are turned after it are none that the model would compute."""


def _turning_error(embedding: Any, rotary: Rotary, heads: int, size: int, dtype: torch.dtype) -> float:
    """Largest difference between keys embedded at a position and keys moved there, relative to the largest key."""
    device = embedding.cos_sin_cache.device
    generator = torch.Generator().manual_seed(1)
    source = torch.tensor(_TEST_POSITIONS) % rotary.positions
    target = source.flip(0)
    plain = torch.randn(len(source), heads * size, generator=generator).to(device=device, dtype=dtype)

    def embedded(positions: torch.Tensor) -> torch.Tensor:
        _, keys = embedding(positions.to(device), plain.clone(), plain.clone())
        return keys.view(1, len(positions), heads, size)

    moved = rotate(embedded(source), rotary.between(source, target), neox=rotary.neox)
    wanted = embedded(target).float()
    return float((moved - wanted).abs().max() / wanted.abs().max())
