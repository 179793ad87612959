"""Moving keys to another position: taking one rotary embedding off and putting another on, in one rotation.

Keys in the cache are rotated by their position: ``k_s = m R(s) k``, where R turns pairs of dimensions by angles that
grow with the position, and m is YaRN's scale (1 without it). Then ``k_t = R(t) R(s)ᵀ k_s``. Both angles are read from
the model's own table of cosines and sines, so that what comes off is exactly what the model put on, for every scaling
whose table does not change with the length of a prompt (linear, Llama 3, YaRN).

Source: RoFormer (arXiv 2104.09864), section 3.2.2; YaRN (arXiv 2309.00071), section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_KERNEL_DTYPES = (torch.float16, torch.bfloat16)
KERNEL_DIMS = (64, 128, 256, 512)
"""Dimensions of a key for which FlashInfer has kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """A rotation of each of several tokens.

    Attributes:
        cosines: [tokens, rotary dim / 2] float32 (float64 for a float64 table).
        sines: the same.
    """

    cosines: torch.Tensor
    sines: torch.Tensor


class Rotary:
    """A model's rotary embedding.

    Args:
        table: [positions, rotary dim], cosines then sines, as SGLang keeps them.
        neox: pairs are dimensions i and i + rotary dim / 2 (GPT-NeoX, Llama); else 2i and 2i + 1 (GPT-J).
    """

    def __init__(self, table: torch.Tensor, *, neox: bool) -> None:
        self.neox = neox
        self.rotary_dim = table.shape[1]
        precision = torch.promote_types(table.dtype, torch.float32)
        self._cosines, self._sines = table.to(precision).chunk(2, dim=1)

    @property
    def positions(self) -> int:
        """How many positions the table has."""
        return self._cosines.shape[0]

    def between(self, source: torch.Tensor, target: torch.Tensor) -> Rotation:
        """Rotation that moves each token from one position to another.

        Args:
            source: [tokens] int64; zeros are keys without a rotation.
            target: [tokens] int64.

        Raises:
            ValueError: a position lies outside the table.
        """
        ends = torch.stack((source, target))
        if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < self.positions:
            raise ValueError(f"a position is not in the model's table of {self.positions}")
        cos_s, sin_s = self._cosines[source], self._sines[source]
        cos_t, sin_t = self._cosines[target], self._sines[target]
        scale = cos_s.square() + sin_s.square()  # m², up to the table's own rounding
        return Rotation((cos_t * cos_s + sin_t * sin_s) / scale, (sin_t * cos_s - cos_t * sin_s) / scale)


def rotate(keys: torch.Tensor, rotation: Rotation, *, neox: bool) -> torch.Tensor:
    """Rotate keys, with FlashInfer's kernel where it fits, else in the rotation's precision.

    Args:
        keys: [layers, tokens, heads, dim]; dimensions beyond the rotary ones stay as they are.
        rotation: for these tokens.
        neox: layout, as in :class:`Rotary`.

    Returns:
        The same shape; in the keys' dtype from the kernel, else in the rotation's precision.
    """
    if keys.is_cuda and keys.dtype in _KERNEL_DTYPES and keys.shape[-1] in KERNEL_DIMS:
        return _rotate_by_kernel(keys, rotation, neox=neox)
    return rotate_exactly(keys, rotation, neox=neox)


def rotate_exactly(keys: torch.Tensor, rotation: Rotation, *, neox: bool) -> torch.Tensor:
    """Rotate keys with torch, in the rotation's precision: the reference of :func:`rotate`."""
    cosines, sines = rotation.cosines[:, None, :].to(keys.device), rotation.sines[:, None, :].to(keys.device)
    half = cosines.shape[-1]
    wide = keys.to(cosines.dtype)
    turned, rest = wide[..., : 2 * half], wide[..., 2 * half :]
    if neox:
        first, second = turned[..., :half], turned[..., half:]
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    one, two = first * cosines - second * sines, second * cosines + first * sines
    together = torch.cat((one, two), dim=-1) if neox else torch.stack((one, two), dim=-1).flatten(-2)
    return torch.cat((together, rest), dim=-1) if rest.shape[-1] else together


def _rotate_by_kernel(keys: torch.Tensor, rotation: Rotation, *, neox: bool) -> torch.Tensor:
    """One launch for all layers: the rotations are the kernel's table, and a token's place in it is its position."""
    from flashinfer.rope import (  # pyright: ignore[reportMissingImports]
        apply_rope_with_cos_sin_cache_inplace,
    )

    layers, tokens, heads, dim = keys.shape
    table = torch.cat((rotation.cosines, rotation.sines), dim=-1).to(device=keys.device, dtype=torch.float32)
    positions = torch.arange(tokens, device=keys.device).repeat(layers)
    rotated = keys.contiguous().clone().view(layers * tokens, heads * dim)
    unused = torch.zeros(layers * tokens, dim, dtype=keys.dtype, device=keys.device)  # it takes queries, too
    apply_rope_with_cos_sin_cache_inplace(positions, unused, rotated, dim, table, is_neox=neox)
    return rotated.view(layers, tokens, heads, dim)
