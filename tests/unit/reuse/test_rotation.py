"""Moving keys, against rotary embedding in complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.reuse import Rotary, Rotation, rotate

POSITIONS = 100_001
HEAD_DIM = 16
YARN = 0.1 * math.log(16) + 1
"""Its scale for contexts 16 times as long."""
FLOAT32, BFLOAT16 = torch.finfo(torch.float32).eps, torch.finfo(torch.bfloat16).eps

places = st.lists(st.integers(0, POSITIONS - 1), min_size=1, max_size=5)
layouts = pytest.mark.parametrize("neox", [True, False], ids=["neox", "gpt-j"])
widths = pytest.mark.parametrize("rotary_dim", [16, 8, 2])


def frequencies(rotary_dim: int) -> torch.Tensor:
    return 10_000.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)


def llama3(rotary_dim: int) -> torch.Tensor:
    """High frequencies as they are, low ones an eighth, and something in between."""
    plain = frequencies(rotary_dim)
    share = ((8192 * plain / (2 * math.pi) - 1) / 3).clamp(0, 1)
    return plain * (share + (1 - share) / 8)


def table(inverse: torch.Tensor, scale: float = 1.0, positions: int = POSITIONS) -> torch.Tensor:
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * inverse
    return torch.cat((scale * angles.cos(), scale * angles.sin()), dim=1)


def pairs(keys: torch.Tensor, rotary_dim: int, neox: bool) -> torch.Tensor:
    """The rotary dimensions as complex numbers."""
    wide, half = keys[..., :rotary_dim].double(), rotary_dim // 2
    return torch.complex(wide[..., :half], wide[..., half:]) if neox else torch.complex(wide[..., ::2], wide[..., 1::2])


def unpaired(numbers: torch.Tensor, keys: torch.Tensor, neox: bool) -> torch.Tensor:
    """The other way round, with the dimensions that have no part in it."""
    parts = torch.view_as_real(numbers)
    together = torch.cat((parts[..., 0], parts[..., 1]), dim=-1) if neox else parts.flatten(-2)
    return torch.cat((together, keys[..., 2 * numbers.shape[-1] :].double()), dim=-1)


def embedded(
    keys: torch.Tensor, at: torch.Tensor, inverse: torch.Tensor, neox: bool, scale: float = 1.0
) -> torch.Tensor:
    """Keys with the embedding of their positions; float64."""
    turned = scale * torch.exp(1j * at[:, None] * inverse)
    return unpaired(pairs(keys, 2 * len(inverse), neox) * turned[:, None, :], keys, neox)


def drawn(tokens: int, seed: int = 0) -> torch.Tensor:
    """Keys of two layers and three heads."""
    return torch.randn(2, tokens, 3, HEAD_DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(keys: torch.Tensor, rotary: Rotary, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return rotate(keys, rotary.between(source, target), neox=rotary.neox)


SOURCE, TARGET = torch.tensor([0, 17, 100_000, 5, 64_123]), torch.tensor([100_000, 18, 3, 5, 99])


@layouts
@widths
@pytest.mark.parametrize("made", [frequencies, llama3])
@pytest.mark.parametrize("scale", [1.0, YARN, 0.7])
def test_moved_keys_are_those_that_are_embedded_there(
    neox: bool, rotary_dim: int, made: Callable[[int], torch.Tensor], scale: float
) -> None:
    inverse = made(rotary_dim)
    rotary = Rotary(table(inverse, scale), neox=neox)
    keys = drawn(len(SOURCE))
    before, after = (embedded(keys, at, inverse, neox, scale) for at in (SOURCE, TARGET))
    result = moved(before, rotary, SOURCE, TARGET)
    assert result.dtype == torch.float64
    assert (result - after).abs().max() < 1e-9


RANDOM = torch.rand(8, generator=torch.Generator().manual_seed(3), dtype=torch.float64).sort(descending=True).values
NEOX = Rotary(table(RANDOM), neox=True)
NARROW = Rotary(table(frequencies(HEAD_DIM)).float(), neox=True)


@settings(max_examples=40, deadline=None)
@given(places, st.integers(0, POSITIONS - 1), st.integers(0, 1000))
def test_keys_go_anywhere(source: list[int], target: int, seed: int) -> None:
    keys, starts = drawn(len(source), seed), torch.tensor(source)
    ends = torch.full_like(starts, target)
    before, after = (embedded(keys, at, RANDOM, neox=True) for at in (starts, ends))
    assert (moved(before, NEOX, starts, ends) - after).abs().max() < 1e-9


@settings(max_examples=40, deadline=None)
@given(places, st.integers(0, POSITIONS - 1))
def test_there_and_back_nothing_has_changed(source: list[int], target: int) -> None:
    starts, keys = torch.tensor(source), drawn(len(source))
    ends = (starts + target) % POSITIONS
    assert (moved(moved(keys, NEOX, starts, ends), NEOX, ends, starts) - keys).abs().max() < 1e-12
    narrow = keys.float()
    there = moved(narrow, NARROW, starts, ends)
    assert (moved(there, NARROW, ends, starts) - narrow).abs().max() <= 8 * FLOAT32 * narrow.abs().max()


@layouts
@pytest.mark.parametrize("scale", [1.0, YARN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_comes_off_is_what_a_rounded_table_put_on(neox: bool, scale: float, dtype: torch.dtype) -> None:
    rounded = table(llama3(HEAD_DIM), scale).to(dtype)
    cosines, sines = rounded.double().chunk(2, dim=1)
    keys = drawn(len(SOURCE))
    before, after = (
        unpaired(pairs(keys, HEAD_DIM, neox) * torch.complex(cosines[at], sines[at])[:, None, :], keys, neox)
        for at in (SOURCE, TARGET)
    )
    result = moved(before.float(), Rotary(rounded, neox=neox), SOURCE, TARGET)
    assert result.dtype == torch.float32
    assert (result - after).abs().max() <= 4 * FLOAT32 * after.abs().max()


@layouts
def test_keys_in_bfloat16_are_rounded_once(neox: bool) -> None:
    keys = drawn(len(SOURCE)).to(torch.bfloat16)
    inverse = frequencies(HEAD_DIM)
    result = moved(keys, Rotary(table(inverse).float(), neox=neox), SOURCE, TARGET)
    expected = embedded(keys, TARGET - SOURCE, inverse, neox)
    assert result.dtype == torch.float32
    one_rounding = expected.abs() * BFLOAT16 / 2 + 8 * FLOAT32 * keys.abs().max()
    assert ((result.to(torch.bfloat16).double() - expected).abs() <= one_rounding).all()


@layouts
@widths
def test_keys_without_an_embedding_get_theirs(neox: bool, rotary_dim: int) -> None:
    inverse, keys = frequencies(rotary_dim), drawn(len(TARGET))
    rotary = Rotary(table(inverse), neox=neox)
    home = torch.zeros_like(TARGET)
    there = embedded(keys, TARGET, inverse, neox)
    assert (moved(keys, rotary, home, TARGET) - there).abs().max() < 1e-9
    assert (moved(there, rotary, TARGET, home) - keys).abs().max() < 1e-9


@layouts
def test_dimensions_that_are_not_rotary_stay_bit_for_bit(neox: bool) -> None:
    keys = drawn(len(SOURCE)).to(torch.bfloat16)
    result = moved(keys, Rotary(table(frequencies(6)), neox=neox), SOURCE, TARGET)
    assert torch.equal(result[..., 6:], keys[..., 6:].double())
    assert not torch.equal(result[..., :6], keys[..., :6].double())


@pytest.mark.parametrize(("source", "target"), [([0, -1], [0, 1]), ([0, 1], [0, 50]), ([50], [0]), ([3], [-7])])
def test_positions_that_the_model_does_not_have_are_refused(source: list[int], target: list[int]) -> None:
    rotary = Rotary(table(frequencies(8), positions=50), neox=True)
    assert rotary.positions == 50
    with pytest.raises(ValueError, match="table of 50"):
        rotary.between(torch.tensor(source), torch.tensor(target))


def test_no_tokens_are_no_trouble() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    rotation = NEOX.between(none, none)
    assert isinstance(rotation, Rotation)
    assert rotate(drawn(0), rotation, neox=True).shape == (2, 0, 3, HEAD_DIM)
