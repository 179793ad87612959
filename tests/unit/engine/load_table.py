"""A device tier for tests of loads: fixed prompts of agents, on it or on the host only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvflow.engine import Coordinator, Counters, DeviceView, Load, Prefetcher, PromptClaim, Room
from kvflow.engine.owners import Owners
from kvflow.policy import PrefetchPace, ServingCosts
from kvflow.predict import ClaimPrediction, WorkflowUpdate

COSTS = ServingCosts(load_token_s=1e-3)


@dataclass(eq=False)
class Node:
    """A radix node on the device, the host, or both."""

    tokens: int = 0
    parent: Node | None = None
    owners: Owners | None = None
    load: Load | None = None
    arriving: Load | None = None
    fetched: bool = False
    children: dict[int, Node] = field(default_factory=dict)
    last_access_time: float = 0.0
    hit_count: int = 0
    backuped: bool = True
    evicted: bool = False
    locked: bool = False

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent.children[id(self)] = self

    @property
    def key(self) -> range:
        return range(self.tokens)


class Table:
    """A server with a fixed prompt of 100 tokens per agent, all of them known, some on the device."""

    def __init__(self, *, max_tokens: int = 1000, policy: str = "cost") -> None:
        self.coordinator = Coordinator(policy, COSTS)
        self.counters = Counters()
        self.pace = PrefetchPace(COSTS, link_share=1.0, device_tokens=16_000)
        self.prefetcher = Prefetcher(self.coordinator, self.pace, lambda: self.counters, max_tokens=max_tokens)
        self.root = Node()
        self.fixed = {agent: Node(100, self.root) for agent in "abcdef"}
        self.free_tokens = 0
        self.running = self.promised_tokens = 0
        for agent, node in self.fixed.items():
            self.say("before", **{agent: 0.1})
            self.coordinator.tag(PromptClaim(workflow_id="before", workflow_type="t", agent=agent), [(node, 100)], 100)
        self.coordinator.apply(WorkflowUpdate(workflow_id="before", workflow_type="t", retired=True))
        self.time(10.0)

    def say(self, workflow: str, **due_s: float) -> None:
        now_s = self.coordinator.claims.clock.now_s
        claims = tuple(ClaimPrediction(agent=agent, steps=None, due_s=now_s + s) for agent, s in due_s.items())
        self.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", claims=claims))

    def time(self, now_s: float) -> None:
        self.coordinator.tick(now_s)

    def evict(self, *agents: str) -> None:
        for agent in agents:
            self.fixed[agent].evicted = True

    def device(self) -> DeviceView:
        def leaf(node: Node) -> bool:
            return not (node.evicted or node.locked or any(not child.evicted for child in node.children.values()))

        leaves = [node for top in self.root.children.values() for node in (top, *top.children.values()) if leaf(node)]
        self.coordinator.open_round(leaves)
        return DeviceView(leaves=leaves, locked=lambda node: node.locked, own_order=lambda node: node.last_access_time)

    def room(self) -> Room:
        nodes = [node for top in self.root.children.values() for node in (top, *top.children.values())]
        evictable_tokens = sum(node.tokens for node in nodes if not (node.evicted or node.locked))
        return Room(
            free_tokens=self.free_tokens,
            evictable_tokens=evictable_tokens,
            running=self.running,
            promised_tokens=self.promised_tokens,
            page_tokens=16,
        )

    def next(self) -> Load | None:
        return self.prefetcher.next(self.room(), self.device)

    def load(self) -> Load:
        load = self.next()
        assert load is not None
        self.prefetcher.begun(load)
        nodes: Any = load.nodes
        for node in nodes:
            node.evicted = False
        return load
