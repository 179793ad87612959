"""Which tokens of a spliced text are computed nevertheless."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from kvflow.reuse import KV, Graft, chosen, deviations, joined


def kv(tokens: int, seed: int = 0) -> KV:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, 1, tokens, 2, 8, generator=generator)
    return KV(keys, values)


def test_tokens_that_differ_most_are_chosen_from_all_grafts_together() -> None:
    grafts = [Graft(start=10, end=30), Graft(start=50, end=70)]
    deviation = torch.zeros(40, dtype=torch.float64)
    deviation[[3, 4, 15, 39]] = torch.tensor([5.0, 6.0, 7.0, 8.0], dtype=torch.float64)
    assert chosen(grafts, deviation, 0.1) == [[(13, 15), (25, 26)], [(69, 70)]]


def tokens_in(runs: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in runs)


@pytest.mark.parametrize(("share", "tokens"), [(0.0, 0), (0.04, 0), (0.05, 1), (1.0, 20)])
def test_the_budget_is_a_share_of_the_tokens(share: float, tokens: int) -> None:
    (runs,) = chosen([Graft(start=5, end=25)], torch.arange(20, dtype=torch.float64), share)
    assert tokens_in(runs) == tokens


@pytest.mark.parametrize("share", [0.05, 0.15, 0.3, 0.46, 0.5, 0.9, 1.0])
def test_what_is_computed_with_the_tokens_chosen_counts_as_well(share: float) -> None:
    grafts = [Graft(start=10, end=410), Graft(start=410, end=900), Graft(start=905, end=917)]
    deviation = torch.rand(902, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    runs = [run for of_graft in chosen(grafts, deviation, share) for run in of_graft]
    assert tokens_in(runs) == int(share * 902)


def test_one_or_two_tokens_between_chosen_ones_are_computed_where_the_budget_allows() -> None:
    grafts = [Graft(start=0, end=20), Graft(start=20, end=40)]
    deviation = torch.zeros(40, dtype=torch.float64)
    deviation[[3, 6, 19, 21, 10]] = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0], dtype=torch.float64)
    assert chosen(grafts, deviation, 6 / 40) == [[(3, 7), (19, 20)], [(21, 22)]], "texts are apart"
    assert chosen(grafts, deviation, 2 / 40) == [[(3, 4), (19, 20)], []], "three tokens do not fit, one does"


def test_tokens_that_differ_alike_are_taken_in_their_order() -> None:
    assert chosen([Graft(start=0, end=1000)], torch.ones(1000, dtype=torch.float64), 0.1) == [[(0, 100)]]


def test_runs_that_touch_become_one() -> None:
    assert joined([(9, 10), (1, 2), (4, 5), (8, 9), (20, 21)]) == [(1, 2), (4, 5), (8, 10), (20, 21)]
    assert joined([]) == []


def test_keys_and_values_count_alike_whatever_their_scale() -> None:
    put = kv(30)
    computed = KV(put.keys.clone(), 100 * put.values)
    put = KV(put.keys, 100 * put.values)
    computed.keys[:, 4] += put.keys[:, 4].norm()
    computed.values[:, 20] += put.values[:, 20].norm()
    found = deviations(put, computed)
    assert found.dtype == torch.float64
    assert sorted(found.topk(2).indices.tolist()) == [4, 20]
    assert found[4] == pytest.approx(found[20].item(), rel=0.6)
    assert found[[0, 1, 2, 3]].abs().max() == 0


def test_ranks_that_know_their_own_heads_find_the_same_tokens_together() -> None:
    put = kv(12)
    computed = KV(put.keys.clone(), put.values.clone())
    computed.keys[:, 2, 0] += 3
    computed.values[:, 7, 1] += 3

    def seen(head: int) -> torch.Tensor:
        one, other = (KV(x.keys[..., head : head + 1, :], x.values[..., head : head + 1, :]) for x in (put, computed))
        return deviations(one, other)

    assert [int(seen(head).argmax()) for head in range(2)] == [2, 7]
    assert chosen([Graft(start=0, end=12)], seen(0) + seen(1), 2 / 12) == [[(2, 3), (7, 8)]]
