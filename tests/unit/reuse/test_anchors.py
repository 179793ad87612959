"""Anchors: which examples a text is like, and what follows from them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvflow.reuse import KV
from kvflow.reuse.anchors import Anchor, AnchorPool, combined

DIM = 4


def anchor(at: float = 0.0, *, tokens: int = 10, start: int = 0) -> Anchor:
    """An example whose values are all the same."""
    offset = KV(torch.zeros(1, tokens, 1, 2), torch.zeros(1, tokens, 1, 2))
    return Anchor(start=start, tokens=(), value_sketch=torch.full((tokens, DIM), at), offset=offset)


def pool(*anchors: Anchor, size: int = 20, entropy: float = 0.3, window: int = 5) -> AnchorPool:
    made = AnchorPool(size=size, entropy=entropy, window=window)
    for one in anchors:
        assert made.add(one) is None
    return made


def squared(*distances: float) -> torch.Tensor:
    return torch.tensor(distances, dtype=torch.float64).square()


def sketch(tokens: int, seed: int) -> torch.Tensor:
    return torch.randn(tokens, DIM, generator=torch.Generator().manual_seed(seed))


def test_comparing_reads_no_offset() -> None:
    class Unreadable:
        def __getattr__(self, name: str) -> None:
            raise AssertionError(f"{name} of an offset was read")

    examples = pool(*(anchor(float(index)) for index in range(3)))
    for one in examples.anchors:
        one.offset = Unreadable()  # type: ignore[assignment]
    assert len(examples.weigh(examples.distances(torch.full((10, DIM), 0.1), 0)).anchors) == 1


@pytest.mark.parametrize("anchors", [0, 1])
def test_fewer_than_two_examples_tell_nothing(anchors: int) -> None:
    weighing = pool(*(anchor() for _ in range(anchors))).weigh(squared(*[1.0] * anchors))
    assert weighing.anchors == ()
    assert weighing.reason == "few anchors"


def test_a_text_that_only_one_example_covers_is_not_served() -> None:
    examples = pool(anchor(tokens=10), anchor(tokens=13), anchor(tokens=12))
    assert examples.weigh(examples.distances(torch.ones(13, DIM), 0)).reason == "few anchors"


@pytest.mark.parametrize("others", [[], [0.0], [0.3, math.inf], [0.0, 0.0, 4.0]])
def test_a_text_that_is_an_example_is_served_from_it_alone(others: list[float]) -> None:
    examples = pool(*(anchor(float(index)) for index in range(1 + len(others))))
    assert examples.weigh(squared(0.0, *others)).anchors == ((examples.anchors[0], 1.0),)


def test_a_text_longer_than_all_examples_is_not_served() -> None:
    examples = pool(anchor(tokens=10), anchor(tokens=12))
    weighing = examples.weigh(examples.distances(torch.zeros(13, DIM), 0))
    assert weighing.anchors == ()
    assert weighing.reason == "longer than all anchors"
    assert [one.uses for one in examples.anchors] == [0, 0]


@pytest.mark.parametrize("distance", [0.5, 7.0, 1000.0])
@pytest.mark.parametrize("count", [2, 3, 20])
def test_a_text_as_far_from_all_is_like_none_in_particular(distance: float, count: int) -> None:
    examples = pool(*(anchor() for _ in range(count)))
    weighing = examples.weigh(squared(*[distance] * count))
    assert weighing.anchors == ()
    assert weighing.reason == "like no anchor in particular"
    assert {one.uses for one in examples.anchors} == {0}


def test_an_example_that_is_very_near_counts_alone() -> None:
    far, near, farther = examples = anchor(20.0), anchor(1.0), anchor(-30.0)
    made = pool(*examples)
    ((one, weight),) = made.weigh(made.distances(torch.full((10, DIM), 1.1), 0)).anchors
    assert one is near
    assert weight == 1.0
    assert [far.uses, near.uses, farther.uses] == [0, 1, 0]


def test_examples_that_are_too_short_have_no_weight() -> None:
    short, near, far = anchor(1.0, tokens=5), anchor(1.2), anchor(1.5)
    made = pool(short, near, far, entropy=1.0)
    weighing = made.weigh(made.distances(torch.ones(8, DIM), 0))
    assert {id(one) for one, _ in weighing.anchors} == {id(near), id(far)}
    assert sum(weight for _, weight in weighing.anchors) == pytest.approx(1.0, abs=1e-12)
    assert short.uses == 0


@pytest.mark.parametrize("examples", range(2, 21))
def test_with_the_greatest_gamma_all_weights_will_do(examples: int) -> None:
    made = pool(*(anchor(float(index)) for index in range(examples)), entropy=1.0)
    assert made.weigh(squared(*[7.3] * examples)).reason == ""


far_away = st.just(math.inf)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.02, 12) | far_away, min_size=2, max_size=20), st.floats(0.05, 1.0))
def test_weights_are_a_softmax_of_distances_that_may_not_be_too_even(distances: list[float], entropy: float) -> None:
    finite = [distance for distance in distances if distance < math.inf]
    assume(len(finite) > 1)
    nearest = min(finite)
    shares = [math.exp(nearest - distance) for distance in distances]
    shares = [share / math.fsum(shares) for share in shares]
    disorder, most = -math.fsum(share * math.log(share) for share in shares if share), math.log(len(finite))
    assume(abs(disorder - entropy * most) > 1e-9)
    examples = pool(*(anchor(float(index)) for index in range(len(distances))), entropy=entropy)
    weighing = examples.weigh(squared(*distances))
    if disorder > entropy * most:
        assert weighing.reason == "like no anchor in particular"
        return
    places = [examples.anchors.index(one) for one, _ in weighing.anchors]
    assert all(distances[place] < math.inf for place in places)
    assert sum(weight for _, weight in weighing.anchors) == pytest.approx(1.0, abs=1e-12)
    mass = math.fsum(shares[place] for place in places)
    assert mass >= 0.9 - 1e-9
    assert mass - min(shares[place] for place in places) < 0.9 + 1e-9, "no more than are needed"
    assert (
        min(shares[place] for place in places)
        >= max((share for place, share in enumerate(shares) if place not in places), default=0.0) - 1e-12
    )
    assert [weight for _, weight in weighing.anchors] == pytest.approx([shares[place] / mass for place in places])
    assert [one.uses for one in examples.anchors] == [int(place in places) for place in range(len(distances))]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 6), st.integers(1, 6), st.lists(st.tuples(st.integers(0, 6), st.integers(1, 10)), max_size=5))
def test_distances_are_between_the_same_tokens_of_a_slot(
    start: int, tokens: int, examples: list[tuple[int, int]]
) -> None:
    text = sketch(tokens, 99)
    sketches = [sketch(count, seed) for seed, (_, count) in enumerate(examples)]
    anchors = [anchor(start=first, tokens=count) for first, count in examples]
    for one, values in zip(anchors, sketches, strict=True):
        one.value_sketch = values
    measured = pool(*anchors).distances(text, start).tolist()
    for (first, count), values, distance in zip(examples, sketches, measured, strict=True):
        of_slot = {first + place: values[place] for place in range(count)}
        wanted = [of_slot.get(start + place) for place in range(tokens)]
        parts = [math.dist(a.tolist(), b.tolist()) ** 2 for a, b in zip(wanted, text, strict=True) if a is not None]
        assert distance == pytest.approx(math.fsum(parts) if len(parts) == tokens else math.inf, rel=1e-5)


def test_the_ranks_distances_add_up() -> None:
    text, values = sketch(6, 1), sketch(6, 2)
    whole, left, right = (anchor(tokens=6) for _ in range(3))
    whole.value_sketch, left.value_sketch, right.value_sketch = values, values[:, :1], values[:, 1:]
    parts = pool(left).distances(text[:, :1], 0) + pool(right).distances(text[:, 1:], 0)
    assert parts.tolist() == pytest.approx(pool(whole).distances(text, 0).tolist())


def test_an_example_covers_the_tokens_it_has() -> None:
    one, known = anchor(start=3, tokens=4), {3, 4, 5, 6}
    for start in range(9):
        for tokens in range(1, 8):
            assert one.covers(start, tokens) is (set(range(start, start + tokens)) <= known)


def test_the_least_used_of_the_oldest_leaves_a_full_pool() -> None:
    examples = [anchor(float(index)) for index in range(6)]
    made = pool(*examples, size=6, window=3)
    for one, uses in zip(examples, [5, 2, 4, 0, 0, 0], strict=True):
        one.uses = uses
    new = anchor(9.0)
    assert made.add(new) is examples[1]
    assert made.add(anchor(10.0)) is examples[3], "which is one of the oldest now"
    assert [one.value_sketch[0, 0].item() for one in made.anchors] == [0, 2, 4, 5, 9, 10]


def test_of_those_used_alike_the_oldest_leaves() -> None:
    examples = [anchor(float(index)) for index in range(4)]
    made = pool(*examples, size=4)
    assert [made.add(anchor()) for _ in range(4)] == examples


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offsets_are_added_up_by_weight_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    parts = [KV(*(torch.randn(2, 5, 3, dim, generator=generator).to(dtype) for dim in (4, 6))) for _ in range(3)]
    weights = [0.61, 0.3, 0.09]
    added = combined(list(zip(parts, weights, strict=True)))
    for got, given_ in ((added.keys, [p.keys for p in parts]), (added.values, [p.values for p in parts])):
        expected = torch.einsum("p,p...->...", torch.tensor(weights).double(), torch.stack(given_).double())
        assert got.dtype == torch.float32
        assert (got - expected).abs().max() < 1e-6


def test_one_offset_alone_stays_as_it_is() -> None:
    keys, values = torch.randn(1, 4, 1, 2), torch.randn(1, 4, 1, 2)
    added = combined([(KV(keys, values), 1.0)])
    assert torch.equal(added.keys, keys)
    assert torch.equal(added.values, values)


def test_all_that_is_held_is_counted() -> None:
    one = anchor(tokens=10)
    alone = 10 * DIM * 4 + 2 * 10 * 2 * 4
    assert one.nbytes == alone
    one.following = KV(torch.zeros(1, 3, 1, 2), torch.zeros(1, 3, 1, 2))
    assert one.nbytes == alone + 2 * 3 * 2 * 4
