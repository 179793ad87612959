"""Eviction orders on leaves made by hand."""

from __future__ import annotations

import pytest

from kvflow.errors import ConfigError
from kvflow.policy import POLICIES, EvictionClass, Leaf, ServingCosts, Standing, make_policy

DUE_SOON = Standing(tail_steps=0, rate_hz=2.0, next_s=0.5, probability=0.9, context_tokens=4096)
DUE_LATE = Standing(tail_steps=3, rate_hz=0.1, next_s=10.0, probability=0.9, context_tokens=4096)
DOUBTFUL = Standing(tail_steps=0, rate_hz=0.2, next_s=0.5, probability=0.1, context_tokens=4096)
FIXED = Standing(fixed_steps=9, rate_hz=0.01, next_s=100.0, probability=1.0, context_tokens=4096)
RETIRED = Standing(retired=True)
SUPERSEDED = Standing(superseded=True)
UNCLAIMED = Standing()
PINNED = Standing(tail_steps=0, pinned=True, rate_hz=0.1, next_s=10.0, probability=0.9)


def order(policy: str, *standings: Standing, **fields: object) -> list[Standing]:
    """Standings in the order in which they leave."""
    made = make_policy(policy)
    fields = {"tokens": 512, "end_tokens": 4096} | fields
    return sorted(standings, key=lambda standing: made.rank(Leaf(standing=standing, **fields)))


def test_cost_evicts_what_is_over_then_replaced_then_unclaimed_then_by_rate() -> None:
    expected = [RETIRED, SUPERSEDED, UNCLAIMED, DUE_LATE, DOUBTFUL, DUE_SOON]
    assert order("cost", *reversed(expected)) == expected


def test_cost_tells_fixed_prompts_from_tails_by_value_alone() -> None:
    wanted = Standing(fixed_steps=1, rate_hz=9.0, next_s=1.0, probability=1.0)
    assert order("cost", wanted, DUE_SOON, FIXED, DUE_LATE) == [FIXED, DUE_LATE, DUE_SOON, wanted]


def test_cost_knows_that_a_load_is_cheaper_than_a_computation() -> None:
    policy = make_policy("cost", ServingCosts(prefill_token_s=1e-4, load_token_s=1e-6))
    here_only = policy.rank(Leaf(standing=DUE_LATE, tokens=512))
    with_a_copy = policy.rank(Leaf(standing=DUE_SOON, tokens=512, backed_up=True))
    assert with_a_copy < here_only


def test_cost_knows_that_deep_tokens_take_longer_to_compute() -> None:
    policy = make_policy("cost")
    shallow, deep = (Leaf(standing=DUE_SOON, tokens=512, end_tokens=end) for end in (1_000, 100_000))
    assert policy.rank(shallow) < policy.rank(deep)


@pytest.mark.parametrize("state", ["retired", "superseded"])
def test_cost_weighs_size_against_age_in_what_is_over(state: str) -> None:
    policy = make_policy("cost", ServingCosts())

    def rank(tokens: int, idle_s: float) -> tuple[float, float]:
        return policy.rank(Leaf(standing=Standing(**{state: True}, idle_s=idle_s), tokens=tokens))

    assert rank(2000, 60) < rank(1000, 60) < rank(1000, 20) < rank(100, 60)
    assert rank(2000, 0) < rank(1000, 0), "what has just ended goes by size"


def test_steps_evicts_the_agent_furthest_from_running_and_fixed_prompts_after_tails() -> None:
    near = Standing(fixed_steps=1, rate_hz=0.01, next_s=100.0, probability=1.0)
    assert order("steps", PINNED, near, FIXED, DUE_SOON, DUE_LATE) == [DUE_LATE, DUE_SOON, FIXED, near, PINNED]


def test_ttl_only_tells_pinned_contexts_from_others() -> None:
    policy = make_policy("ttl")
    ranks = {policy.rank(Leaf(standing=one, tokens=512)) for one in (RETIRED, UNCLAIMED, DUE_SOON, FIXED)}
    assert len(ranks) == 1
    assert policy.rank(Leaf(standing=PINNED, tokens=512)) > ranks.pop()


def test_saga_weighs_age_reuse_and_size() -> None:
    policy = make_policy("saga")
    base = policy.rank(Leaf(standing=DUE_SOON, tokens=512, age=0.5))
    assert policy.rank(Leaf(standing=DUE_SOON, tokens=512, age=1.0)) < base
    assert policy.rank(Leaf(standing=DOUBTFUL, tokens=512, age=0.5)) < base
    assert policy.rank(Leaf(standing=DUE_SOON, tokens=8192, age=0.5)) < base
    cls, value = policy.rank(Leaf(standing=DUE_SOON, tokens=8192, age=0.5))
    assert cls == EvictionClass.UNCLAIMED
    assert value == pytest.approx(-(0.3 * 0.5 + 0.5 * 0.1 + 0.2 * 0.5))


def test_saga_keeps_what_is_pinned_whatever_its_age_and_size() -> None:
    policy = make_policy("saga")
    pinned = policy.rank(Leaf(standing=PINNED, tokens=8192, age=1.0))
    assert pinned == (EvictionClass.PINNED, pytest.approx(-(0.3 + 0.5 * 0.1 + 0.2 * 0.5)))
    other = policy.rank(Leaf(standing=FIXED, tokens=1, age=0.0))
    assert other[1] > pinned[1]
    assert other < pinned


def test_lfu_and_slru_go_by_hits() -> None:
    once, twice, often = (Leaf(standing=UNCLAIMED, tokens=512, hits=hits) for hits in (1, 2, 9))
    lfu, slru = make_policy("lfu"), make_policy("slru")
    assert lfu.rank(once) < lfu.rank(twice) < lfu.rank(often)
    assert slru.rank(once) < slru.rank(twice) == slru.rank(often)


def test_tlru_lets_go_of_what_a_next_prompt_can_do_without() -> None:
    policy = make_policy("tlru")
    context = Standing(tail_steps=0, context_tokens=32_768, rate_hz=1.0, next_s=1.0, probability=1.0)
    start, end = (Leaf(standing=context, tokens=512, end_tokens=end) for end in (8_192, 32_768))
    assert policy.rank(end) < policy.rank(start)


def test_belady_evicts_what_is_used_last_or_never() -> None:
    assert order("belady", DUE_SOON, UNCLAIMED, DUE_LATE) == [UNCLAIMED, DUE_LATE, DUE_SOON]


NEVER_USED = ("retired", "superseded", "unclaimed")
EVERYTHING = (*NEVER_USED, "due soon", "fixed", "pinned")
BY_VALUE = [("retired",), ("superseded",), ("unclaimed",), ("fixed",), ("pinned",), ("due soon",)]
ORDERS = {
    "lru": [EVERYTHING],
    "lfu": [EVERYTHING],
    "slru": [EVERYTHING],
    "tlru": [("due soon", "fixed"), (*NEVER_USED, "pinned")],
    "steps": [(name,) for name in EVERYTHING],
    "ttl": [(*NEVER_USED, "due soon", "fixed"), ("pinned",)],
    "saga": [NEVER_USED, ("due soon",), ("fixed",), ("pinned",)],
    "cost": BY_VALUE,
    "belady": [NEVER_USED, ("fixed",), ("pinned",), ("due soon",)],
    "belady-cost": BY_VALUE,
}
"""What leaves together, the first to leave first, where leaves differ in their standing alone."""


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_order_has_its_name_and_ranks_every_standing(policy: str) -> None:
    made = make_policy(policy)
    assert made.name == policy
    standings = dict(zip(EVERYTHING, (RETIRED, SUPERSEDED, UNCLAIMED, DUE_SOON, FIXED, PINNED), strict=True))
    together: dict[tuple[float, float], tuple[str, ...]] = {}
    for name, standing in standings.items():
        rank = made.rank(Leaf(standing=standing, tokens=512, end_tokens=4096))
        together[rank] = (*together.get(rank, ()), name)
    assert [names for _, names in sorted(together.items())] == ORDERS[policy]


def test_classes_go_from_what_is_over_to_what_is_pinned() -> None:
    classes = [one.cls for one in (RETIRED, SUPERSEDED, UNCLAIMED, DUE_LATE, FIXED, PINNED)]
    assert classes == sorted(EvictionClass)


def test_an_unknown_order_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"choose one of lru, .*cost"):
        make_policy("magic")
