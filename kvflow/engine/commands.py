"""Commands on cached context, executed where the cache is."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from kvflow.engine.accounting import Tier
from kvflow.engine.backup import BackupPlanner
from kvflow.engine.claim import Claim
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.lost import cached_part
from kvflow.engine.owners import Pin
from kvflow.engine.pins import Pins, from_the_top
from kvflow.engine.ports import Node
from kvflow.engine.prefetch import Prefetcher
from kvflow.hints.commands import Verb

_MAX_LEAVING = 256
"""Commands that wait for copies; further ones leave only what has a copy."""
_MAX_LOADING = 256
"""Commands that wait for loads, or for their turn to be told that these are over."""
_LOOKED_AT = 16
"""Of either, those looked at in one tick; where there are more, they take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCommand:
    """One command, its target resolved as far as the control plane can.

    Attributes:
        workflow_id: None for the prompt of a request without a step.
        agent: None for all of the workflow.
        start_tokens, end_tokens: range of the prompt of the request that carries it; an end of None: with its answer.
        tier: the uppermost tier a pin is for.
        tenant: whose budget it counts for.
    """

    verb: Verb
    workflow_id: str | None = None
    agent: str | None = None
    start_tokens: int = 0
    end_tokens: int | None = None
    ttl_s: float = 30.0
    priority: int = 50
    tier: Literal["device", "host"] = "device"
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a command; ``status`` in the words of :class:`kvflow.hints.Status`."""

    status: str
    reason: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What there is to pin in, in tokens, and how much of it one tenant may pin."""

    device_tokens: int
    host_tokens: int
    tenant_share: float


@dataclass(slots=True, kw_only=True)
class _Leaving:
    """What is to leave the device once its copies are through."""

    command: KvCommand
    nodes: dict[Node, None]
    claims: set[Claim]
    until_s: float
    gone: int = 0


@dataclass(slots=True, kw_only=True)
class _Loading:
    """What has been ordered to be loaded."""

    command: KvCommand
    nodes: dict[Node, None]
    until_s: float


class Commands:
    """Executes commands on the nodes of claims and prompts.

    Args:
        coordinator: whose contexts they are.
        prefetcher: takes orders to load; None where there is nothing to load from.
        capacity: asked for each time.
        demote: lets a node leave the device if it can; tells whether it did.
        pin_hourly_s: seconds of an hour for which one tenant may pin all that it may.
        copying: whether a copy of a node to the host is under way.
        backups: takes orders to copy; None where nobody copies but the body itself, as it sees fit.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        prefetcher: Prefetcher | None,
        capacity: Callable[[], Capacity],
        demote: Callable[[Node], bool],
        *,
        pin_hourly_s: float = 3600.0,
        copying: Callable[[Node], bool] = lambda node: False,
        backups: BackupPlanner | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._prefetcher = prefetcher
        self._capacity = capacity
        self._demote = demote
        self._copying = copying
        self._backups = backups
        self._leaving: deque[_Leaving] = deque()
        self._loading: dict[tuple[str, tuple[Node, ...]], _Loading] = {}
        self._pins = Pins(coordinator, pin_hourly_s)
        coordinator.on_split = self._split

    def execute(self, command: KvCommand) -> Answer:
        """Execute a command on what a workflow, or one of its agents, has computed last."""
        claims = self._coordinator.claims.of(command.workflow_id or "")
        lifted = self._let_go(command, live=claims is not None) if command.verb == "kv.release" else 0
        answer = self._execute(command, claims)
        if lifted:
            return Answer(status="accepted", tokens=lifted + answer.tokens)
        return answer

    def _execute(self, command: KvCommand, claims: Mapping[str, Claim] | None) -> Answer:
        if claims is None:
            return Answer(status="missing", reason="no such workflow is live")
        chosen = list(claims.values())
        if command.agent is not None:
            if command.agent not in claims:
                return Answer(status="missing", reason="the workflow has no such agent")
            chosen = [claims[command.agent]]
        nodes: dict[Node, None] = {}
        for claim in chosen:
            nodes |= dict.fromkeys(self._nodes_of(claim))
        if not nodes:
            return Answer(status="missing", reason="nothing of it is cached")
        if command.verb == "kv.release":  # its pins have been lifted; those that remain are others'
            return self._call_off(command.tenant, list(nodes), 0)
        return self._on(command, list(nodes), set(chosen))

    def on_prompt(self, command: KvCommand, path: Sequence[tuple[Node, int]]) -> Answer:
        """Execute a command on the prompt of a request, now that it has been computed.

        Args:
            command: its range is widened to whole nodes.
            path: the prompt's nodes with the position of each node's last token + 1, deepest first.
        """
        end_tokens = math.inf if command.end_tokens is None else command.end_tokens
        nodes = [node for node, end in path if end > command.start_tokens and end - len(node.key) < end_tokens]
        if not nodes:
            return Answer(status="missing", reason="the prompt has no such tokens in the cache, in whole pages")
        claims = self._coordinator.claims.of(command.workflow_id or "") or {}
        own = {claim for agent, claim in claims.items() if agent == command.agent}
        return self._on(command, nodes, own)

    def tick(self) -> list[tuple[KvCommand, Answer]]:
        """Time has passed: forget pins that are over, carry out what had to wait; returns what has become of that.

        Cost: O(nodes) of sixteen commands that wait for copies, and of sixteen that wait for loads.
        """
        self._pins.tick()
        answers = []
        for _ in range(min(_LOOKED_AT, len(self._leaving))):
            each = self._leaving.popleft()  # one by one: should one fail, the others have their turn the next time
            if not self._waits_on(each):
                answers.append((each.command, self._leave(each)))
        for key in [*islice(self._loading, _LOOKED_AT)]:
            loading = self._loading.pop(key)
            answer = self._load(loading)
            answers.append((loading.command, answer))
            if answer.status == "deferred":
                self._loading[key] = loading
        return [(command, answer) for command, answer in answers if answer.status != "deferred"]

    def flushed(self) -> None:
        """The cache has been flushed."""
        self._pins.clear()
        self._leaving.clear()
        self._loading.clear()

    def _nodes_of(self, claim: Claim) -> list[Node]:
        """A claim's cached context, deepest first."""
        node, _ = cached_part(claim.tip, self._coordinator.cached)
        nodes = []
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes

    def _on(self, command: KvCommand, nodes: list[Node], claims: set[Claim]) -> Answer:
        if command.verb in ("kv.pin", "kv.retain"):
            return self._pin(command, nodes)
        if command.verb == "kv.prefetch":
            return self._prefetch(command, nodes, claims)
        if command.verb == "kv.demote":
            until_s = self._coordinator.claims.clock.now_s + command.ttl_s
            leaving = _Leaving(command=command, nodes=dict.fromkeys(nodes), claims=claims, until_s=until_s)
            if self._backups is not None:
                self._backups.order(_tips([n for n in nodes if not self._wanted_by_others(n, leaving)]), until_s)
            return self._leave(leaving)
        return self._release(command.tenant, nodes)

    def _pin(self, command: KvCommand, nodes: list[Node]) -> Answer:
        """Pin as far as the tenant's budget goes."""
        clock = self._coordinator.claims.clock
        tier = Tier.HOST if command.verb == "kv.retain" else Tier(command.tier)
        capacity = self._capacity()
        tier_tokens = capacity.device_tokens if tier is Tier.DEVICE else capacity.host_tokens
        if not tier_tokens:
            return Answer(status="rejected", reason="this server has no host tier")
        wanted_s = clock.now_s + command.ttl_s
        asked = {(command.workflow_id, command.agent): wanted_s}
        pin = Pin(wanted_s, command.priority, on_device=tier is Tier.DEVICE, asked=asked)
        held, until_s = self._pins.pin(command.tenant, tier, nodes, pin, capacity.tenant_share * tier_tokens)
        clock.version += 1
        if tier is Tier.HOST and self._backups is not None:
            self._backups.order(_tips(held), until_s)
        wanted, kept = (sum(len(node.key) for node in some) for some in (nodes, held))
        time_is_over = "the tenant's time is used up (commands.pin_hourly_s)"
        if not kept:
            over = until_s <= clock.now_s
            reason = time_is_over if over else f"the tenant has pinned all it may of the {tier}"
            return Answer(status="rejected", reason=reason)
        reasons = [f"{kept} of {wanted} tokens: the tenant's budget is used up"] if kept < wanted else []
        if until_s < wanted_s:
            reasons.append(f"for {until_s - clock.now_s:.3g} s: {time_is_over}")
        return Answer(status="clipped" if reasons else "accepted", reason="; ".join(reasons), tokens=kept)

    def _split(self, upper: Node, lower: Node) -> None:
        """A node has been divided: what holds for it holds for both halves."""
        self._pins.split(upper, lower)
        for waiting in (*self._leaving, *self._loading.values()):
            if lower in waiting.nodes:
                waiting.nodes[upper] = None

    def _prefetch(self, command: KvCommand, nodes: list[Node], claims: set[Claim]) -> Answer:
        missing = sum(len(node.key) for node in nodes if node.evicted)
        lost = sum(claim.context_tokens - sum(len(node.key) for node in self._nodes_of(claim)) for claim in claims)
        gone = f"{lost} tokens are neither on the device nor on the host any more"
        if not missing:
            reason = gone if lost > 0 else "all of it is on the device"
            return Answer(status="clipped" if lost > 0 else "accepted", reason=reason)
        if self._prefetcher is None:
            return Answer(status="unsupported", reason="this server loads nothing ahead (prefetch.enabled, host tier)")
        until_s = self._coordinator.claims.clock.now_s + command.ttl_s
        tips = _tips(nodes)
        order = (command.tenant, tuple(tips))
        too_many = len(self._loading) >= _MAX_LOADING and order not in self._loading
        if too_many or not self._prefetcher.order(tips, until_s, command.tenant):
            return Answer(status="rejected", reason="too many loads are ordered already")
        evicted = dict.fromkeys(node for node in nodes if node.evicted)
        self._loading[order] = _Loading(command=command, nodes=evicted, until_s=until_s)
        if lost > 0:
            return Answer(status="clipped", reason=f"{gone}; the rest loads as soon as it can", tokens=missing)
        return Answer(status="deferred", reason="loads as soon as the link and room allow", tokens=missing)

    def _load(self, loading: _Loading) -> Answer:
        """What has become of an ordered load so far."""
        here = sum(len(node.key) for node in loading.nodes if not node.evicted)
        left = sum(len(node.key) for node in loading.nodes if node.evicted and self._coordinator.cached(node))
        if self._prefetcher is not None and left < self._prefetcher.least_tokens:
            left = 0  # requests compute so few themselves
        if left and self._coordinator.claims.clock.now_s < loading.until_s:
            return Answer(status="deferred", tokens=here)
        missing = sum(len(node.key) for node in loading.nodes) - here
        if missing < (self._prefetcher.least_tokens if self._prefetcher is not None else 1):
            return Answer(status="accepted", reason="loaded", tokens=here)
        reason = f"{missing} tokens were not loaded in time, or are gone"
        return Answer(status="clipped" if here else "rejected", reason=reason, tokens=here)

    def _leave(self, leaving: _Leaving) -> Answer:
        """From the leaves up, as far as nobody else is known to use them; again later if a copy is under way."""
        gone = shared = 0
        nodes = leaving.nodes = dict.fromkeys(filter(self._coordinator.cached, leaving.nodes))
        for node in reversed(from_the_top(nodes)):
            if node.evicted:
                continue
            if self._wanted_by_others(node, leaving):
                shared += len(node.key)
            elif self._demote(node):
                gone += len(node.key)
        left = [node for node in nodes if not node.evicted]
        leaving.gone += gone
        if not left:
            return Answer(status="accepted", tokens=leaving.gone)
        waits = self._coordinator.claims.clock.now_s < leaving.until_s and any(map(self._being_copied, left))
        if waits and len(self._leaving) < _MAX_LEAVING:
            self._leaving.append(leaving)
            return Answer(status="deferred", reason="leaves once it has been copied to the host", tokens=leaving.gone)
        tokens = sum(len(node.key) for node in left)
        reason = f"{tokens} tokens stay: in use, not copied to the host, or used by or pinned for others ({shared})"
        return Answer(status="clipped" if leaving.gone else "rejected", reason=reason, tokens=leaving.gone)

    def _waits_on(self, leaving: _Leaving) -> bool:
        """Put what has to leave off again while every end of it is being copied. Cost: O(its nodes)."""
        there = [node for node in leaving.nodes if self._coordinator.cached(node) and not node.evicted]
        waits = bool(there) and all(map(self._being_copied, _tips(there)))
        if waits := waits and self._coordinator.claims.clock.now_s < leaving.until_s:
            self._leaving.append(leaving)
        return waits

    def _being_copied(self, node: Node) -> bool:
        return self._copying(node) or (self._backups is not None and self._backups.ordered(node))

    def _wanted_by_others(self, node: Node, leaving: _Leaving) -> bool:
        owners = node.owners
        if owners is None:
            return False
        now_s, tenant = self._coordinator.claims.clock.now_s, leaving.command.tenant
        if any(pin.on_device and pin.until_s > now_s for (by, _), pin in owners.pins.items() if by != tenant):
            return True
        others = any(claim.expected for claim in owners.claims if claim not in leaving.claims)
        return others or any(any(claim not in leaving.claims for claim in role.claims) for role in owners.fixed)

    def _let_go(self, command: KvCommand, *, live: bool) -> int:
        """Lift what was pinned for a workflow or an agent, be it over by now or its context another; tokens of that.

        Whose a workflow was is no longer known once it is over; then its orders are taken back, too.
        """
        nodes = self._pins.lift(command.workflow_id, command.agent, command.tenant if live else None)
        if not live:
            for (tenant, tips), loading in [*self._loading.items()]:
                ordered = loading.command
                if ordered.workflow_id == command.workflow_id and command.agent in (None, ordered.agent):
                    self._take_back(tenant, [*tips])
        if self._backups is not None:
            self._backups.cancel([node for node in nodes if not _retained(node)])
        self._coordinator.claims.clock.version += 1
        return sum(len(node.key) for node in nodes)

    def _take_back(self, tenant: str, nodes: list[Node]) -> int:
        """Cancel a tenant's orders to load any of these; how many there were."""
        for key in [key for key in self._loading if key[0] == tenant and not set(key[1]).isdisjoint(nodes)]:
            del self._loading[key]
        return self._prefetcher.cancel(nodes, tenant) if self._prefetcher is not None else 0

    def _release(self, tenant: str, nodes: list[Node]) -> Answer:
        """Lift what this tenant has pinned of a prompt, for whomever; others' pins on the same nodes stay."""
        freed = 0
        for node in nodes:
            tiers = [tier for tier in (Tier.DEVICE, Tier.HOST) if self._pins.unpin(tenant, tier, node)]
            freed += len(node.key) if tiers else 0
        return self._call_off(tenant, nodes, freed)

    def _call_off(self, tenant: str, nodes: list[Node], freed: int) -> Answer:
        """Take back a tenant's orders to load or copy what it has pinned no longer, so many tokens."""
        cancelled = self._take_back(tenant, nodes)
        if self._backups is not None:
            self._backups.cancel([node for node in nodes if not _retained(node)])
        self._coordinator.claims.clock.version += 1
        if not (freed or cancelled):
            return Answer(status="missing", reason="nothing of it was pinned, retained or ordered")
        return Answer(status="accepted", tokens=freed)


def _retained(node: Node) -> bool:
    return node.owners is not None and any(tier is Tier.HOST for _, tier in node.owners.pins)


def _tips(nodes: Iterable[Node]) -> list[Node]:
    """Nodes with none of the others below them."""
    above = {id(node.parent) for node in nodes}
    return [node for node in nodes if id(node) not in above]
