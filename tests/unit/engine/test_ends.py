"""At which nodes claimed contexts end, so that what is kept there alone is of use."""

from __future__ import annotations

from itertools import pairwise

from kvflow.engine import Coordinator
from kvflow.engine.owners import Owners, Pin
from tests.unit.engine.test_branches import Talk
from tests.unit.engine.test_claims import FakeNode, announce, claim, coordinator, retire

__all__ = ["coordinator"]


def path(*nodes: FakeNode) -> list[tuple[FakeNode, int]]:
    """Nodes of 64 tokens each, from the top down, as prompts are tagged."""
    for upper, lower in pairwise(nodes):
        lower.parent = upper
    return [(node, 64 * (place + 1)) for place, node in enumerate(nodes)][::-1]


def ends(nodes: list[FakeNode], reach_tokens: int = 1) -> list[bool]:
    return [node.owners is not None and node.owners.ends_within(reach_tokens) for node in nodes]


def test_a_context_ends_at_its_last_node_and_its_fixed_prompt_before(coordinator: Coordinator) -> None:
    nodes = [FakeNode() for _ in range(4)]
    announce(coordinator, "w", {"critic": 3})
    coordinator.tag(claim("w", "critic"), path(*nodes), fixed_tokens=128)
    assert ends(nodes) == [False, True, False, True]
    assert ends(nodes, reach_tokens=64) == [False, True, False, True]
    assert ends(nodes, reach_tokens=65) == [True] * 4


def test_a_fixed_prompt_that_roles_alone_hold_ends_where_theirs_does(coordinator: Coordinator) -> None:
    fixed = [FakeNode() for _ in range(3)]
    for workflow in ("w1", "w2", "w3"):
        announce(coordinator, workflow, {"critic": 3})
        coordinator.tag(claim(workflow, "critic"), path(*fixed, FakeNode()), fixed_tokens=192)
    assert not any(node.owners.claims for node in fixed if node.owners is not None)
    assert ends(fixed) == [False, False, True]


def test_conversations_of_one_agent_end_each_at_its_own_node(coordinator: Coordinator) -> None:
    first, second = Talk(coordinator), Talk(coordinator)
    for talk in (first, second, first, second):
        talk.ask(requests=2)
    for talk in (first, second):
        assert ends(talk.nodes) == [False, True]


def test_where_an_ended_workflow_has_left_off_nobody_goes_on(coordinator: Coordinator) -> None:
    nodes = [FakeNode() for _ in range(3)]
    for workflow, agent, count in (("w1", "critic", 2), ("w2", "writer", 3)):
        announce(coordinator, workflow, {agent: 3})
        coordinator.tag(claim(workflow, agent), path(*nodes[:count]), fixed_tokens=0)
    assert ends(nodes) == [False, True, True]
    retire(coordinator, "w1")
    assert ends(nodes) == [False, False, True]


def test_what_is_pinned_counts_wherever_it_ends() -> None:
    owners = Owners(64)
    assert not owners.ends_within(1)
    owners.pins["t", "device"] = Pin(until_s=1.0, priority=50, on_device=True)
    assert owners.ends_within(1)
