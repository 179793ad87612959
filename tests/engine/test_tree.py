"""Claims and eviction order in SGLang's real radix cache."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvflow.engine import PromptClaim
from kvflow.policy import POLICIES, EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def prompt(*blocks: int, tokens: int = 16) -> list[int]:
    """A prompt of distinguishable blocks."""
    return [1000 * block + index for block in blocks for index in range(tokens)]


def trust(tree: Any, share: float) -> None:
    """Have the guard let predictions choose among this share of the cache only."""
    tree.cache.trust._guard.share = share


def announce(tree: Any, workflow: str, **steps: float) -> None:
    claims = tuple(ClaimPrediction(agent=agent, steps=value) for agent, value in steps.items())
    tree.cache.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", claims=claims))


def tag(tree: Any, workflow: str, agent: str, tokens: Sequence[int], fixed: int) -> None:
    claim = PromptClaim(workflow_id=workflow, workflow_type="t", agent=agent)
    tree.cache.coordinator.tag(claim, tree.path(tokens), fixed)


def workload(seed: int, count: int = 400) -> list[list[int]]:
    """Prompts that share prefixes, split nodes and come back, many times the capacity."""
    rng = random.Random(seed)
    heads = [prompt(head, tokens=rng.choice([8, 12, 24])) for head in range(1, 6)]
    prompts = []
    for _ in range(count):
        tail = [rng.randrange(50_000, 50_006) for _ in range(rng.randrange(0, 24))]
        prompts.append(rng.choice(heads)[: rng.randrange(4, 25)] + tail)
    return prompts


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("policy", ["cost", "steps", "ttl", "lru"])
@pytest.mark.parametrize("stock", ["python", "rust"])
def test_without_hints_the_same_prompts_hit_and_miss_as_in_stock_sglang(
    make_tree: Callable[..., Any], stock: str, policy: str, seed: int
) -> None:
    ours, theirs = make_tree("kvflow", policy=policy), make_tree(stock)
    for tokens in workload(seed):
        assert ours.match(tokens) == theirs.match(tokens)
        ours.insert(tokens)
        theirs.insert(tokens)
        assert ours.allocator.available_size() == theirs.allocator.available_size()


@pytest.mark.parametrize("share", [1.0, 0.25, 0.0])
def test_without_hints_victims_are_the_same_nodes_in_the_same_order(
    make_tree: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore

    victims: dict[int, list[tuple[int, ...]]] = {}
    original = UnifiedTreeCore.evict_device_leaf

    def record(self: Any, node_id: int, is_write_back: bool) -> Any:
        victims.setdefault(id(self), []).append(tuple(self.node_by_id(node_id).key.token_ids))
        return original(self, node_id, is_write_back)

    monkeypatch.setattr(UnifiedTreeCore, "evict_device_leaf", record)
    ours, theirs = make_tree("kvflow"), make_tree("python")
    trust(ours, share)
    for tokens in workload(seed=7):
        ours.insert(tokens)
        theirs.insert(tokens)
    assert len(victims[id(theirs.cache.tree_core)]) > 100
    assert victims[id(ours.cache.tree_core)] == victims[id(theirs.cache.tree_core)]


def test_the_agent_that_runs_last_is_evicted_first_against_recency(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow", policy="steps")
    near, far = prompt(1), prompt(2)
    tree.insert(near)
    tree.insert(far)  # more recent
    announce(tree, "w", near=1, far=5)
    tag(tree, "w", "near", near, 16)
    tag(tree, "w", "far", far, 16)
    tree.evict(16)
    assert (tree.resident(near), tree.resident(far)) == (16, 0)


def test_dynamic_tails_leave_before_any_fixed_prompt(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow", policy="steps")
    next_agent, last_agent = prompt(1, 10), prompt(2, 20)
    for tokens in (last_agent, next_agent):
        tree.insert(tokens[:16])
        tree.insert(tokens)
    announce(tree, "w", soon=1, late=9)
    tag(tree, "w", "soon", next_agent, 16)
    tag(tree, "w", "late", last_agent, 16)
    tree.evict(32)
    assert (tree.resident(next_agent), tree.resident(last_agent)) == (16, 16)


def test_an_ancestor_shared_with_a_nearer_agent_outlives_its_other_child(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow", policy="steps")
    system = prompt(1)
    near, far = system + prompt(2), system + prompt(3)
    tree.insert(near)
    tree.insert(far)
    announce(tree, "w", near=1, far=5)
    tag(tree, "w", "near", near, 32)
    tag(tree, "w", "far", far, 32)
    tree.evict(16)
    assert (tree.resident(near), tree.resident(far)) == (32, 16)


@pytest.mark.parametrize("refused", [True, False])
def test_the_token_that_sglang_puts_in_place_of_a_refused_prompt_is_nobodys(
    make_tree: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    cache, tagged = make_tree("kvflow").cache, []
    monkeypatch.setattr(UnifiedRadixCache, "checkpoint", lambda *args, **kwargs: None)
    monkeypatch.setattr(cache, "_tag", tagged.append)
    monkeypatch.setattr(cache.commands, "prompt", tagged.append)
    monkeypatch.setattr(cache.watch, "computed", tagged.append)
    req = SimpleNamespace(lock=None, to_finish=FINISH_ABORT("too long") if refused else None, finished_reason=None)
    cache.checkpoint(req, up_to=1)
    assert tagged == ([] if refused else [req] * 3)


@pytest.mark.parametrize("storage", [False, True])
def test_with_storage_the_host_keeps_copies_of_what_the_device_holds(
    make_tree: Callable[..., Any], storage: bool
) -> None:
    core = make_tree("kvflow").cache.tree_core
    core.exclusive, core.enable_storage = True, storage
    assert core._is_exclusive() is not storage


def test_claims_survive_a_split_made_by_a_later_prompt(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    whole = prompt(1, 2)
    tree.insert(whole)
    announce(tree, "w", agent=2)
    tag(tree, "w", "agent", whole, 32)
    tree.insert(whole[:12] + prompt(9))
    classes = [tree.cache.tree_core.class_of(node) for node, _ in tree.path(whole)]
    assert classes == [EvictionClass.FIXED, EvictionClass.FIXED]
    tree.evict(16)
    assert tree.resident(whole) == 32


def test_retired_context_leaves_before_unclaimed_and_pinned_context_last(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    pinned, unclaimed, retired = prompt(1), prompt(2), prompt(3)
    for tokens in (pinned, unclaimed, retired):  # recency says the opposite
        tree.insert(tokens)
    announce(tree, "ended", agent=1)
    tag(tree, "ended", "agent", retired, 0)
    tree.cache.coordinator.apply(WorkflowUpdate(workflow_id="ended", workflow_type="t", retired=True))
    tree.cache.coordinator.apply(
        WorkflowUpdate(
            workflow_id="live",
            workflow_type="t",
            claims=(ClaimPrediction(agent="tool_user", steps=1, pinned=True),),
        )
    )
    tag(tree, "live", "tool_user", pinned, 0)
    order = []
    for _ in range(3):
        tree.evict(16)
        order.append([tree.resident(tokens) for tokens in (retired, unclaimed, pinned)])
    assert order == [[0, 16, 16], [0, 0, 16], [0, 0, 0]]


def test_pins_are_soft_and_never_make_an_allocation_fail(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow", capacity_tokens=64)
    for block in range(4):
        tree.insert(prompt(block + 1))
    everything = tuple(ClaimPrediction(agent=str(block), steps=1, pinned=True) for block in range(4))
    tree.cache.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=everything))
    for block in range(4):
        tag(tree, "w", str(block), prompt(block + 1), 0)
    tree.insert(prompt(9, 8, 7))
    assert tree.resident(prompt(9, 8, 7)) == 48


def test_locked_nodes_are_not_evicted_however_worthless_their_claims(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    running, other = prompt(1), prompt(2)
    tree.insert(running)
    tree.insert(other)
    announce(tree, "w", agent=1)
    tag(tree, "w", "agent", running, 0)
    tree.cache.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", retired=True))
    lock = tree.cache.lock(tree.path(running)[0][0].id)
    tree.evict(32)
    assert (tree.resident(running), tree.resident(other)) == (16, 0)
    tree.cache.unlock(lock)


def test_a_flush_drops_every_claim_with_its_node(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    tokens = prompt(1)
    tree.insert(tokens)
    announce(tree, "w", agent=1)
    tag(tree, "w", "agent", tokens, 16)
    tree.cache.reset()
    tree.allocator.clear()
    tree.insert(tokens)
    assert tree.cache.tree_core.class_of(tree.path(tokens)[0][0]) is EvictionClass.UNCLAIMED


def test_what_a_claim_remembers_of_an_evicted_context_holds_no_memory(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    tree.insert(prompt(1))
    announce(tree, "w", agent=3)
    tag(tree, "w", "agent", prompt(1), 16)
    node = tree.path(prompt(1))[0][0]
    assert node.component_data[0].value is not None
    tree.evict(16)
    assert tree.resident(prompt(1)) == 0
    assert node.component_data[0].value is None
    assert len(node.key) == 16


def test_evictions_are_counted_with_the_class_they_had(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    tree.insert(prompt(1))
    announce(tree, "w", agent=3)
    tag(tree, "w", "agent", prompt(1), 16)
    tree.evict(16)
    evicted = {k: v for k, v in tree.cache.accounting.counters.evicted_tokens.items() if v}
    assert evicted == {"device/fixed": 16}


def test_should_ranking_ever_fail_the_order_becomes_sglangs_and_nothing_stops(
    make_tree: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    from kvflow.patches.guard import degraded

    tree = make_tree("kvflow")
    older, newer = prompt(1), prompt(2)
    tree.insert(older)
    tree.insert(newer)
    announce(tree, "w", older=1, newer=5)
    tag(tree, "w", "older", older, 16)
    tag(tree, "w", "newer", newer, 16)
    tree.path(older)[0][0].owners.fixed = "broken"  # the state a mistake of ours might leave behind
    tree.path(newer)  # most recently used
    before = degraded["eviction order"]
    tree.evict(16)
    assert (tree.resident(older), tree.resident(newer)) == (0, 16)
    assert tree.cache.coordinator.policy == "lru"
    assert degraded["eviction order"] == before + 1
    assert "SGLang goes on without it" in caplog.text


def predict(tree: Any, agent: str, tokens: Sequence[int], **prediction: float) -> None:
    """A workflow's agent that expects to use a prompt, with a prediction for it."""
    claim = ClaimPrediction(agent=agent, steps=1, **prediction)  # type: ignore[arg-type]
    tree.cache.coordinator.apply(WorkflowUpdate(workflow_id=agent, workflow_type="t", claims=(claim,)))
    tag(tree, agent, agent, tokens, 0)


def test_what_is_due_later_is_evicted_first_against_recency(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    soon, later = prompt(1), prompt(2)
    tree.insert(soon)
    tree.insert(later)  # more recent
    tree.cache.coordinator.tick(100.0)
    predict(tree, "soon", soon, due_s=105.0)
    predict(tree, "later", later, due_s=400.0)
    tree.evict(16)
    assert (tree.resident(soon), tree.resident(later)) == (16, 0)


def test_a_superseded_state_leaves_before_live_ones_however_recent(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    other, head = prompt(5), prompt(1)
    state, new_state = head + prompt(2), head + prompt(3)
    tree.insert(other)
    predict(tree, "other", other, due_s=1000.0)
    tree.insert(state)
    predict(tree, "agent", state, due_s=1.0)
    tree.insert(new_state)
    tag(tree, "agent", "agent", new_state, 0)  # does not continue the first
    tree.path(state)  # most recently used
    tree.evict(16)
    assert [tree.resident(tokens) for tokens in (state, new_state, other)] == [16, 32, 16]
    evicted = {k: v for k, v in tree.cache.accounting.counters.evicted_tokens.items() if v}
    assert evicted == {"device/superseded": 16}


def test_what_the_guard_does_not_trust_prediction_with_goes_by_recency(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    prompts = [prompt(block + 1) for block in range(4)]
    for index, tokens in enumerate(prompts):
        tree.insert(tokens)
        predict(tree, f"a{index}", tokens, due_s=10.0 + 100 * index)  # the youngest is due last
    trust(tree, 0.5)
    order = []
    for _ in range(4):
        tree.evict(16)
        order.append([tree.resident(tokens) for tokens in prompts])
    assert order == [[16, 0, 16, 16], [0, 0, 16, 16], [0, 0, 0, 16], [0, 0, 0, 0]]


class Incomparable:
    """Somebody's policy with a mistake in it."""

    name = "incomparable"

    def rank(self, leaf: Any) -> Any:
        return (1.0, None)


def test_a_policy_of_others_that_ranks_nonsense_is_replaced_by_sglangs_order(
    make_tree: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, "incomparable", lambda costs: Incomparable())
    tree = make_tree("kvflow", policy="incomparable")
    older, newer = prompt(1), prompt(2)
    tree.insert(older)
    tree.insert(newer)
    tree.evict(16)
    assert (tree.resident(older), tree.resident(newer)) == (0, 16)
    assert tree.cache.coordinator.policy == "lru"


def test_counting_a_broken_node_does_not_stop_an_eviction(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow", policy="lru")
    tree.insert(prompt(1))
    announce(tree, "w", agent=1)
    tag(tree, "w", "agent", prompt(1), 16)
    tree.path(prompt(1))[0][0].owners.fixed = "broken"
    tree.evict(16)
    assert tree.resident(prompt(1)) == 0


def test_the_guard_follows_the_order_in_use(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    trusted = tree.cache.trust
    assert trusted.as_dict()["guarded"]
    trust(tree, 0.25)
    tree.cache.coordinator.set_policy("lru")
    trusted.started("r", [], {"device": 0, "host": 0, "storage": 0}, tree.cache.watch.memory())
    assert not trusted.as_dict()["guarded"]
    assert trusted.share == 1.0
    tree.cache.coordinator.set_policy("cost")
    trusted.restart()
    assert trusted.as_dict()["guarded"]
    assert trusted.share == 1.0


def test_the_guard_hears_what_a_waiting_request_looks_for(make_tree: Callable[..., Any]) -> None:
    """In SGLang that is a use, so it is one for the LRU that orders are compared with."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

    tree = make_tree("kvflow")
    req = SimpleNamespace(rid="r", origin_input_ids=prompt(*range(10)), extra_key=None, cache_salt=None, session=None)
    guard = tree.cache.trust._guard
    tree.cache.match_prefix(MatchPrefixParams(key=tree.key(prompt(1))))
    assert not guard._looked_up
    tree.cache.match_prefix(MatchPrefixParams(key=tree.key(prompt(1)), req=req))
    assert list(guard._looked_up) == ["r"]
    assert guard._looked_up["r"] == tree.cache.watch.digests(req)
    assert len(guard._looked_up["r"]) == 160 // 64


def test_of_what_nobody_claims_a_little_more_leaves_than_is_asked_for(make_tree: Callable[..., Any]) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    tree = make_tree("kvflow", capacity_tokens=4096)  # of which an eighth of a sixteenth may be free: 32
    claimed, others = prompt(1), [prompt(block, tokens=4) for block in range(10, 30)]
    for tokens in (*others, claimed):
        tree.insert(tokens)

    def evicted(tokens: int) -> int:
        return tree.cache.evict_for_alloc(EvictParams(num_tokens=tokens)).num_tokens_evicted

    assert evicted(4) == 4, "nobody has told anything"
    announce(tree, "w", near=1)
    tag(tree, "w", "near", claimed, 16)
    assert (evicted(4), evicted(40)) == (32, 40)
    assert evicted(2) == 4, "all that is left of what nobody claims"
    assert tree.resident(claimed) == 16
    assert evicted(4) == 16, "and what is claimed only when it has to"
