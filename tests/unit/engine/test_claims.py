"""Claims on radix nodes: minimum over sharers, splits, retirement, pins, and the order they lead to."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kvflow.engine import Coordinator, Load, PromptClaim
from kvflow.engine.owners import Owners
from kvflow.errors import ConfigError
from kvflow.policy import EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate


@dataclass(eq=False)
class FakeNode:
    owners: Owners | None = None
    load: Load | None = None
    arriving: Load | None = None
    fetched: bool = False
    children: dict[int, FakeNode] = field(default_factory=dict)
    key: range = range(64)
    parent: FakeNode | None = None
    last_access_time: float = 0.0
    hit_count: int = 0
    backuped: bool = False
    evicted: bool = False


def announce(coordinator: Coordinator, workflow: str, steps: dict[str, float | None], pinned: str = "") -> None:
    claims = tuple(ClaimPrediction(agent=a, steps=s, pinned=a == pinned) for a, s in steps.items())
    coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="review", claims=claims))


def retire(coordinator: Coordinator, workflow: str) -> None:
    coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="review", retired=True))


def claim(workflow: str, agent: str) -> PromptClaim:
    return PromptClaim(workflow_id=workflow, workflow_type="review", agent=agent)


def class_of(coordinator: Coordinator, node: FakeNode) -> EvictionClass:
    return coordinator.class_of(node)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator("steps")


def test_a_node_without_claims_is_unclaimed(coordinator: Coordinator) -> None:
    assert class_of(coordinator, FakeNode()) is EvictionClass.UNCLAIMED


def test_fixed_and_tail_are_told_apart_by_where_a_node_ends(coordinator: Coordinator) -> None:
    fixed, tail = FakeNode(), FakeNode()
    announce(coordinator, "w1", {"critic": 3})
    coordinator.tag(claim("w1", "critic"), [(tail, 96), (fixed, 64)], fixed_tokens=64)
    assert coordinator.rank(fixed) == (EvictionClass.FIXED, -3)
    assert coordinator.rank(tail) == (EvictionClass.TAIL, -3)


def test_a_shared_node_takes_the_minimum_over_agents(coordinator: Coordinator) -> None:
    node = FakeNode()
    announce(coordinator, "w1", {"critic": 5, "writer": 2})
    coordinator.tag(claim("w1", "critic"), [(node, 64)], fixed_tokens=64)
    coordinator.tag(claim("w1", "writer"), [(node, 64)], fixed_tokens=64)
    assert coordinator.rank(node) == (EvictionClass.FIXED, -2)


def test_a_fixed_prompt_takes_the_minimum_over_workflows_that_have_not_touched_it(coordinator: Coordinator) -> None:
    node = FakeNode()
    announce(coordinator, "w1", {"critic": 5})
    coordinator.tag(claim("w1", "critic"), [(node, 64)], fixed_tokens=64)
    announce(coordinator, "w2", {"critic": 1})
    assert coordinator.rank(node) == (EvictionClass.FIXED, -1)
    retire(coordinator, "w2")
    assert coordinator.rank(node) == (EvictionClass.FIXED, -5)


def test_further_steps_leave_first(coordinator: Coordinator) -> None:
    near, far = FakeNode(), FakeNode()
    announce(coordinator, "w1", {"near": 1, "far": 9})
    coordinator.tag(claim("w1", "near"), [(near, 64)], fixed_tokens=64)
    coordinator.tag(claim("w1", "far"), [(far, 64)], fixed_tokens=64)
    assert coordinator.rank(far) < coordinator.rank(near)


def test_both_halves_of_a_split_keep_the_claim_and_then_part_ways(coordinator: Coordinator) -> None:
    upper, lower = FakeNode(), FakeNode()
    announce(coordinator, "w1", {"critic": 4})
    coordinator.tag(claim("w1", "critic"), [(lower, 64)], fixed_tokens=64)
    coordinator.split(upper, lower)
    assert coordinator.rank(upper) == coordinator.rank(lower) == (EvictionClass.FIXED, -4)
    announce(coordinator, "w2", {"writer": 1})
    coordinator.tag(claim("w2", "writer"), [(upper, 32)], fixed_tokens=32)
    assert coordinator.rank(upper) == (EvictionClass.FIXED, -1)
    assert coordinator.rank(lower) == (EvictionClass.FIXED, -4)


def test_the_tail_of_an_ended_workflow_is_retired_and_its_fixed_prompt_is_not(coordinator: Coordinator) -> None:
    fixed, tail = FakeNode(), FakeNode()
    announce(coordinator, "w1", {"critic": 1})
    coordinator.tag(claim("w1", "critic"), [(tail, 96), (fixed, 64)], fixed_tokens=64)
    retire(coordinator, "w1")
    assert class_of(coordinator, tail) is EvictionClass.RETIRED
    assert class_of(coordinator, fixed) is EvictionClass.UNCLAIMED
    assert coordinator.rank(tail) < coordinator.rank(FakeNode())


def test_a_fixed_prompt_that_depends_on_its_workflow_is_retired_with_it(coordinator: Coordinator) -> None:
    old, new = FakeNode(), FakeNode()
    announce(coordinator, "w1", {"critic": 1})
    coordinator.tag(claim("w1", "critic"), [(old, 64)], fixed_tokens=64)
    announce(coordinator, "w2", {"critic": 1})
    coordinator.tag(claim("w2", "critic"), [(new, 64)], fixed_tokens=64)
    retire(coordinator, "w1")
    assert class_of(coordinator, old) is EvictionClass.RETIRED
    assert class_of(coordinator, new) is EvictionClass.FIXED


def test_a_pin_holds_the_tail_last_until_it_is_lifted(coordinator: Coordinator) -> None:
    tail, other = FakeNode(), FakeNode()
    announce(coordinator, "w1", {"coder": 1, "critic": 1}, pinned="coder")
    coordinator.tag(claim("w1", "coder"), [(tail, 96)], fixed_tokens=0)
    coordinator.tag(claim("w1", "critic"), [(other, 96)], fixed_tokens=96)
    assert class_of(coordinator, tail) is EvictionClass.PINNED
    assert coordinator.rank(other) < coordinator.rank(tail)
    announce(coordinator, "w1", {"coder": 1, "critic": 1})
    assert class_of(coordinator, tail) is EvictionClass.TAIL


def test_an_agent_that_is_not_expected_again_leaves_by_recency(coordinator: Coordinator) -> None:
    tail = FakeNode()
    announce(coordinator, "w1", {"planner": 0, "critic": 1})
    coordinator.tag(claim("w1", "planner"), [(tail, 96)], fixed_tokens=0)
    announce(coordinator, "w1", {"critic": 0})
    assert class_of(coordinator, tail) is EvictionClass.UNCLAIMED


def test_a_claim_of_an_ended_workflow_cannot_come_back(coordinator: Coordinator) -> None:
    node = FakeNode()
    announce(coordinator, "w1", {"critic": 1})
    retire(coordinator, "w1")
    coordinator.tag(claim("w1", "critic"), [(node, 64)], fixed_tokens=64)
    assert node.owners is None
    assert len(coordinator.claims) == 0


def test_lru_ranks_everything_alike_and_can_be_switched_at_run_time(coordinator: Coordinator) -> None:
    node = FakeNode()
    announce(coordinator, "w1", {"critic": 1})
    coordinator.tag(claim("w1", "critic"), [(node, 64)], fixed_tokens=64)
    coordinator.set_policy("lru")
    assert coordinator.rank(node) == coordinator.rank(FakeNode())
    coordinator.set_policy("steps")
    assert class_of(coordinator, node) is EvictionClass.FIXED


def test_an_unknown_policy_is_refused_and_the_old_one_stays(coordinator: Coordinator) -> None:
    with pytest.raises(ConfigError, match=r"'newest' does not exist; choose one of lru, .*steps"):
        coordinator.set_policy("newest")
    assert coordinator.policy == "steps"


def test_claims_on_a_hot_node_stay_bounded_however_many_workflows_come(coordinator: Coordinator) -> None:
    system, task = FakeNode(), FakeNode()
    for index in range(2000):
        announce(coordinator, f"w{index}", {"critic": 1})
        coordinator.tag(claim(f"w{index}", "critic"), [(task, 96), (system, 64)], fixed_tokens=64)
        retire(coordinator, f"w{index}")
    assert system.owners is not None
    assert task.owners is not None
    assert len(system.owners.claims) <= 32
    assert len(task.owners.claims) <= 32


def test_a_system_prompt_shared_by_thousands_of_workflow_types_stays_bounded(coordinator: Coordinator) -> None:
    system = FakeNode()
    for index in range(2000):
        update = WorkflowUpdate(
            workflow_id="w", workflow_type=str(index), claims=(ClaimPrediction(agent="a", steps=1),)
        )
        coordinator.apply(update)
        coordinator.tag(PromptClaim(workflow_id="w", workflow_type=str(index), agent="a"), [(system, 64)], 64)
        coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type=str(index), retired=True))
    assert system.owners is not None
    assert len(system.owners.fixed) <= 256
    assert len(system.owners.claims) <= 256


def test_a_superseded_fixed_prompt_is_noticed_at_once(coordinator: Coordinator) -> None:
    old, new = FakeNode(), FakeNode()
    announce(coordinator, "w1", {"critic": 1})
    coordinator.tag(claim("w1", "critic"), [(old, 64)], fixed_tokens=64)
    retire(coordinator, "w1")
    announce(coordinator, "w2", {"critic": 1})
    assert class_of(coordinator, old) is EvictionClass.FIXED
    coordinator.tag(claim("w2", "critic"), [(new, 64)], fixed_tokens=64)
    assert class_of(coordinator, old) is EvictionClass.RETIRED


def test_tails_nobody_extends_are_given_up_after_some_workflows(coordinator: Coordinator) -> None:
    for index in range(4):
        node = FakeNode()
        announce(coordinator, f"w{index}", {"critic": 0})
        coordinator.tag(claim(f"w{index}", "critic"), [(node, 96)], fixed_tokens=0)
        announce(coordinator, f"w{index}", {"critic": 2})
        assert class_of(coordinator, node) is EvictionClass.TAIL  # too little experience: keep it
        retire(coordinator, f"w{index}")
    node = FakeNode()
    announce(coordinator, "last", {"critic": 0})
    coordinator.tag(claim("last", "critic"), [(node, 96)], fixed_tokens=0)
    assert class_of(coordinator, node) is EvictionClass.TAIL  # the step still runs
    announce(coordinator, "last", {"critic": 2})
    assert class_of(coordinator, node) is EvictionClass.UNCLAIMED


def test_that_a_workflow_ends_says_nothing_about_whether_its_next_prompt_would_have_gone_on(
    coordinator: Coordinator,
) -> None:
    role = coordinator.claims.role("review", "critic")
    for index in range(30):
        first, second = FakeNode(), FakeNode()
        second.parent = first
        announce(coordinator, f"w{index}", {"critic": 0})
        coordinator.tag(claim(f"w{index}", "critic"), [(first, 96)], fixed_tokens=0)
        coordinator.tag(claim(f"w{index}", "critic"), [(second, 128), (first, 96)], fixed_tokens=0)
        retire(coordinator, f"w{index}")
    assert role.tails_wasted == role.tails_reused
    assert role.tail_probability == 1.0


def test_experience_with_tails_fades(coordinator: Coordinator) -> None:
    role = coordinator.claims.role("review", "critic")
    for _ in range(200):
        role.settle_tail(reused=False)
    assert not role.reuses_tails
    for _ in range(40):
        role.settle_tail(reused=True)
    assert role.reuses_tails


def test_a_tail_that_another_agent_extends_stays_worth_keeping(coordinator: Coordinator) -> None:
    for index in range(3):
        tail, rest = FakeNode(), FakeNode()
        announce(coordinator, f"w{index}", {"writer": 0, "critic": 1})
        coordinator.tag(claim(f"w{index}", "writer"), [(tail, 96)], fixed_tokens=0)
        announce(coordinator, f"w{index}", {"writer": 2, "critic": 0})
        coordinator.tag(claim(f"w{index}", "critic"), [(rest, 128), (tail, 96)], fixed_tokens=0)
        assert class_of(coordinator, tail) is EvictionClass.TAIL
        retire(coordinator, f"w{index}")


def test_a_growing_conversation_keeps_its_tail(coordinator: Coordinator) -> None:
    history: list[tuple[FakeNode, int]] = []
    announce(coordinator, "w1", {"coder": 0})
    for turn in range(1, 6):
        history.insert(0, (FakeNode(), 32 * turn))
        coordinator.tag(claim("w1", "coder"), history, fixed_tokens=0)
    retire(coordinator, "w1")
    node = FakeNode()
    announce(coordinator, "w2", {"coder": 3})
    coordinator.tag(claim("w2", "coder"), [(node, 32)], fixed_tokens=0)
    assert coordinator.rank(node) == (EvictionClass.TAIL, -3)


def test_a_fixed_prompt_is_held_for_the_workflow_to_come(coordinator: Coordinator) -> None:
    node = FakeNode()
    announce(coordinator, "w1", {"triage": 0})
    coordinator.tag(claim("w1", "triage"), [(node, 64)], fixed_tokens=64)
    retire(coordinator, "w1")
    prediction = (ClaimPrediction(agent="triage", steps=4.5),)
    expected = WorkflowUpdate(workflow_id="review", workflow_type="review", claims=prediction, expected=True)
    coordinator.apply(expected)
    assert coordinator.rank(node) == (EvictionClass.FIXED, -4.5)
    assert len(coordinator.claims) == 0
    retire(coordinator, "review")  # a workflow of that name is somebody else
    assert coordinator.rank(node) == (EvictionClass.FIXED, -4.5)


def chain(*ends: int) -> list[tuple[FakeNode, int]]:
    """A path of nodes that hang together, deepest first."""
    path: list[tuple[FakeNode, int]] = []
    above: FakeNode | None = None
    for end in ends:
        above = FakeNode(parent=above)
        path.insert(0, (above, end))
    return path


def test_a_prompt_that_does_not_continue_the_last_one_supersedes_what_only_that_needed(
    coordinator: Coordinator,
) -> None:
    [(old_tail, _), (shared, _)] = chain(64, 128)
    new_tail = FakeNode(parent=shared)
    announce(coordinator, "w1", {"coder": 0})
    coordinator.tag(claim("w1", "coder"), [(old_tail, 128), (shared, 64)], fixed_tokens=0)
    assert class_of(coordinator, old_tail) is EvictionClass.TAIL
    coordinator.tag(claim("w1", "coder"), [(new_tail, 128), (shared, 64)], fixed_tokens=0)
    assert class_of(coordinator, old_tail) is EvictionClass.SUPERSEDED
    assert class_of(coordinator, shared) is EvictionClass.TAIL
    assert class_of(coordinator, new_tail) is EvictionClass.TAIL


def test_what_was_superseded_counts_again_once_a_prompt_comes_back_to_it(coordinator: Coordinator) -> None:
    old, new = chain(64), chain(64)
    announce(coordinator, "w1", {"coder": 0})
    for path in (old, new, old):
        coordinator.tag(claim("w1", "coder"), path, fixed_tokens=0)
    assert class_of(coordinator, old[0][0]) is EvictionClass.TAIL
    assert class_of(coordinator, new[0][0]) is EvictionClass.SUPERSEDED


def test_what_was_superseded_counts_again_once_others_begin_with_it(coordinator: Coordinator) -> None:
    old, new = chain(64), chain(64)
    announce(coordinator, "w1", {"coder": 0})
    for path in (old, new):
        coordinator.tag(claim("w1", "coder"), path, fixed_tokens=0)
    for name in ("w2", "w3"):
        announce(coordinator, name, {"coder": 0})
        coordinator.tag(claim(name, "coder"), old, fixed_tokens=64)
        retire(coordinator, name)
    retire(coordinator, "w1")
    assert class_of(coordinator, old[0][0]) is not EvictionClass.SUPERSEDED


def test_a_node_is_idle_since_it_was_superseded_or_the_last_of_its_workflows_ended(coordinator: Coordinator) -> None:
    first, second, shared = FakeNode(), FakeNode(), FakeNode()
    for workflow in ("w1", "w2"):
        announce(coordinator, workflow, {"critic": 0, "editor": 1})
    coordinator.tick(10.0)
    coordinator.tag(claim("w1", "critic"), [(first, 96)], fixed_tokens=0)
    coordinator.tag(claim("w1", "editor"), [(shared, 64)], fixed_tokens=0)
    coordinator.tag(claim("w2", "critic"), [(shared, 64)], fixed_tokens=0)
    coordinator.tick(20.0)
    coordinator.tag(claim("w1", "critic"), [(second, 80)], fixed_tokens=0)
    coordinator.tick(30.0)
    retire(coordinator, "w1")
    coordinator.tick(45.0)
    assert coordinator.standing(first).idle_s == 25.0, "superseded at 20"
    assert coordinator.standing(second).idle_s == 15.0, "its workflow ended at 30"
    retire(coordinator, "w2")
    coordinator.tick(46.0)
    assert coordinator.standing(shared).idle_s == 1.0
    for number in range(100):
        announce(coordinator, f"w{number + 3}", {"critic": 0})
        coordinator.tag(claim(f"w{number + 3}", "critic"), [(shared, 64)], fixed_tokens=0)
        retire(coordinator, f"w{number + 3}")
    coordinator.tick(50.0)
    assert coordinator.standing(shared).idle_s == 4.0, "workflows that are forgotten have ended, too"


def test_another_agent_keeps_what_one_has_left_behind(coordinator: Coordinator) -> None:
    old, new = chain(64), chain(64)
    announce(coordinator, "w1", {"coder": 0, "critic": 1})
    coordinator.tag(claim("w1", "coder"), old, fixed_tokens=0)
    coordinator.tag(claim("w1", "critic"), old, fixed_tokens=0)
    coordinator.tag(claim("w1", "coder"), new, fixed_tokens=0)
    assert class_of(coordinator, old[0][0]) is EvictionClass.TAIL


def test_the_state_that_an_answer_extends_is_not_superseded(coordinator: Coordinator) -> None:
    path = chain(64, 96, 128)
    announce(coordinator, "w1", {"coder": 0})
    coordinator.tag(claim("w1", "coder"), path[2:], fixed_tokens=0)
    coordinator.tag(claim("w1", "coder"), path[1:], fixed_tokens=0, first=False)  # the answer
    coordinator.tag(claim("w1", "coder"), path, fixed_tokens=0)
    assert {class_of(coordinator, node) for node, _ in path} == {EvictionClass.TAIL}


def test_a_flush_lets_go_of_fixed_prompts_that_their_role_has_forgotten(coordinator: Coordinator) -> None:
    announce(coordinator, "w1", {"coder": 0})
    held = coordinator.claims.claim("w1", "review", "coder")
    assert held is not None
    held.own_prompt = held.role.prompt_of(1)
    coordinator.tag(claim("w1", "coder"), chain(64), fixed_tokens=64)
    for digest in range(2, 100):
        held.role.prompt = held.role.prompt_of(digest)
    assert held.fixed_prompt.tip is not None
    coordinator.flushed()
    assert held.fixed_prompt.tip is None


def test_a_flush_lets_go_of_nodes_and_keeps_the_claims(coordinator: Coordinator) -> None:
    path = chain(64)
    announce(coordinator, "w1", {"coder": 0})
    coordinator.tag(claim("w1", "coder"), path, fixed_tokens=0)
    coordinator.flushed()
    held = coordinator.claims.claim("w1", "review", "coder")
    assert held is not None
    assert held.tip is None
    assert held.steps == 0
    assert held.fixed_prompt.tip is None
    coordinator.tag(claim("w1", "coder"), chain(64), fixed_tokens=0)
    assert class_of(coordinator, path[0][0]) is EvictionClass.TAIL  # nobody touches what is gone
