"""Loads from host to device in the background: ahead of use, or while the request that needs them waits in the queue.

Nothing is queued, so nothing has to be cancelled: one load is under way at a time, and what comes after it is decided
when it has ended, by what is predicted then, or by what the latest search through many claims has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvflow.engine.accounting import Counters
from kvflow.engine.ahead import nearest, target
from kvflow.engine.claim import Claim
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.load_orders import LoadOrders
from kvflow.engine.ports import Node
from kvflow.engine.retry import LoadRetry
from kvflow.engine.room import DeviceView, Room, fitting, unlocked_tokens
from kvflow.policy.prefetch import PrefetchPace

_PAUSE_S = 0.1
"""How long nothing is tried after there was no room."""
_LEAVES = 256
"""Looked at for requests that wait before there is a pause of this length; behind fewer there is a shorter one."""


@dataclass(slots=True, eq=False)
class Load:
    """A load ahead of use.

    Attributes:
        nodes: what is loaded, top down; the last one is the anchor of the load.
        tokens: their length.
        asked: a request waits for it in the queue; else it is ahead of use.
        ordered: by command, so that it is nobody's mistake if it is not used.
        under_way: it has begun and not ended.
        late: a request has had to wait for it.
    """

    nodes: Sequence[Node]
    tokens: int
    asked: bool = False
    ordered: bool = False
    under_way: bool = False
    late: bool = False

    @property
    def anchor(self) -> Any:
        """The deepest node, as the body knows it."""
        return self.nodes[-1]


def brought_tokens(path: Iterable[Node]) -> int:
    """What of these nodes is on the device only because a request waited for it to be loaded, and is not used yet."""
    return sum(len(node.key) for node in path if node.load is not None and node.load.asked)


class Prefetcher:
    """Decides what to load ahead, and keeps account of what became of it.

    Args:
        coordinator: whose claims say what is needed next.
        pace: how early, and how much.
        counters: where outcomes are counted; asked for each time, because they start anew.
        max_tokens: of one load. A request's own load waits at most so long behind it.
        least_tokens: shorter loads are not worth their overhead.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        pace: PrefetchPace,
        counters: Callable[[], Counters],
        *,
        max_tokens: int,
        least_tokens: int = 1,
    ) -> None:
        self.pace = pace
        self._coordinator = coordinator
        self._counters = counters
        self._max_tokens = max_tokens
        self.least_tokens = least_tokens
        self._decided: tuple[int, int] | None = None
        self._resume_s = self._resume_asked_s = self._resume_orders_s = self._search_s = 0.0
        self._search = nearest(coordinator)
        self._looked = 0
        self._orders = LoadOrders(self._missing, least_tokens)
        self._begun = 0

    @property
    def settled(self) -> bool:
        """Whether :meth:`next` has found nothing, and no prediction has changed since."""
        return (self._coordinator.claims.clock.version, self._begun) == self._decided

    def next(self, room: Room, view: Callable[[], DeviceView]) -> Load | None:
        """Choose the next load, if there is one worth it.

        Into free memory, or into that of nodes that leave before it by the active order and under its guard: nothing
        of more value is ever evicted for it. What is being loaded cannot be evicted, so what requests that run will
        need meanwhile is left to them.

        Args:
            room: on the device.
            view: the rest of the device tier; asked for only if something would have to leave.

        Cost: O(1); O(claims) for a search, of which there are few (see :class:`~kvflow.engine.searches.Search`), and
        O(leaves) if something would have to leave, which is tried ten times a second at most.
        """
        clock = self._coordinator.claims.clock
        self.pace.tick(clock.now_s)
        if self.settled or not self.pace.link_free:
            return None
        state = (clock.version, self._begun)
        load = self._ordered(clock.now_s, room, view) or self._predicted(clock.now_s, room, view)
        if load is None:
            self._decided = state
        return load

    def asked(
        self, asking: Iterable[tuple[LoadRetry, Node]], room: Room, view: Callable[[], DeviceView]
    ) -> Load | None:
        """The first load that requests wait for and that there is room for on the same terms; without a budget.

        Args:
            asking: each request's tries, and where its context ends as far as it is cached, in their order. Tries are
                told whether there was room, and nothing where nothing is tried for now.
            room: as for :meth:`next`.
            view: as for :meth:`next`.

        Cost: O(leaves) for each request for which something has to leave, for a fiftieth of the time at most.
        """
        now_s, self._looked, view = self._coordinator.claims.clock.now_s, 0, cache(view)
        for retry, node in asking:
            load = self._first_part(self._missing(node))
            if load is not None:
                load.asked = True
                if load.tokens > room.free_tokens and (now_s < self._resume_asked_s or self._looked >= _LEAVES):
                    continue
                load = self._with_room(load, room, view)
            if load is not None:
                retry.chosen()
                return load
            retry.refused_tokens = room.available_tokens
        if self._looked:
            self._resume_asked_s = now_s + min(1.0, self._looked / _LEAVES) * _PAUSE_S
        return None

    def order(self, nodes: Sequence[Node], until_s: float, tenant: str = "") -> bool:
        """Load contexts as soon as may be, by command; False if too many are ordered already, by the tenant or by all.

        Args:
            nodes: where they end.
            until_s: not after this, on the control plane's clock.
            tenant: who orders.
        """
        if not self._orders.add(nodes, until_s, self._coordinator.claims.clock.now_s, tenant):
            return False
        self._decided, self._resume_orders_s = None, 0.0
        return True

    def cancel(self, nodes: Sequence[Node], tenant: str = "") -> int:
        """Take back what a tenant has ordered of these; returns how many."""
        return self._orders.cancel(nodes, tenant)

    def flushed(self) -> None:
        """The cache has been flushed."""
        self._orders.clear()
        self.pace.flushed()

    def begun(self, load: Load) -> None:
        """A chosen load has begun."""
        self._begun += 1
        load.under_way = True
        for node in load.nodes:
            node.load = node.arriving = load
        counters = self._counters()
        if load.asked:
            counters.background_loads += 1
            counters.background_load_tokens += load.tokens
            return
        self.pace.loaded(load.tokens, ordered=load.ordered)
        counters.prefetches += 1
        counters.prefetched_tokens += load.tokens

    def refused(self) -> None:
        """The body could not begin what was chosen: wait until something changes."""
        self._decided = (self._coordinator.claims.clock.version, self._begun)

    def ended(self, load: Load) -> None:
        """It has arrived."""
        load.under_way = False
        self._begun += 1

    def used(self, path: Iterable[Node]) -> None:
        """A request computes behind these nodes."""
        for node in path:
            load = node.load
            if load is None:
                continue
            node.load = None
            counters = self._counters()
            if load.asked:
                counters.background_used_tokens += len(node.key)
            else:
                if not load.ordered:
                    self.pace.used(len(node.key))
                if load.late or load.under_way:
                    counters.prefetch_late_tokens += len(node.key)
                else:
                    counters.prefetch_used_tokens += len(node.key)

    def left(self, node: Node) -> None:
        """A node leaves the device."""
        load, node.load = node.load, None
        if load is not None and load.asked:
            self._counters().background_wasted_tokens += len(node.key)
        elif load is not None:
            if not load.ordered:
                self.pace.wasted(len(node.key))
            self._counters().prefetch_wasted_tokens += len(node.key)

    def _load_is_coming(self) -> bool:
        """Whether a request will load for itself as soon as it is here: word of it comes ahead, and the link is its."""
        announced = self._coordinator.claims.announced()
        return any(claim.waited_for and self._missing(target(claim)) for claim in announced)

    def _ordered(self, now_s: float, room: Room, view: Callable[[], DeviceView]) -> Load | None:
        """The first order there is room for; one there is none for holds up neither the others nor predictions."""
        if now_s < self._resume_orders_s:
            return None
        for missing in self._orders.open(now_s):
            load = self._first_part(missing)
            if load is None:
                continue
            if self._load_is_coming():
                return None
            load.ordered = True
            if part := self._with_room(load, room, view):
                return part
        self._resume_orders_s = now_s + _PAUSE_S
        return None

    def _predicted(self, now_s: float, room: Room, view: Callable[[], DeviceView]) -> Load | None:
        """What is predicted to be needed next, if there is room: what is needed later is worth less."""
        if now_s < max(self._resume_s, self._search_s) or not self.pace.may_load:
            return None
        load = next(filter(None, map(self._load_of, self._search.found())), None)
        if load is None:
            self._search_s = self._search.next_s
            return None
        if self._load_is_coming():
            return None
        part = self._with_room(load, room, view)
        if part is None:
            self._resume_s = now_s + _PAUSE_S
        return part

    def _load_of(self, claim: Claim) -> Load | None:
        missing = self._missing(target(claim))
        whole = sum(len(node.key) for node in missing)
        next_s = claim.next_s(self._coordinator.claims.clock)
        if whole < self.least_tokens or not self.pace.near(next_s, claim.steps, whole):
            return None
        return self._first_part(missing)

    def _with_room(self, load: Load, room: Room, view: Callable[[], DeviceView]) -> Load | None:
        """As much of a load, from the top, as there is room for."""
        if load.tokens + room.growth_tokens(self.pace.costs.load_steps(load.tokens)) <= room.free_tokens:
            return load
        device = view()
        self._looked += len(device.leaves)
        nodes = load.nodes[: fitting(self._coordinator, load.nodes, room.free_tokens, device)]
        tokens = sum(len(node.key) for node in nodes)
        if nodes and tokens >= self.least_tokens:
            held_tokens = tokens + unlocked_tokens(nodes[0].parent, device.locked)
            if room.may_lock(held_tokens, self.pace.costs.load_steps(tokens)):
                return Load(nodes, tokens, asked=load.asked, ordered=load.ordered)
        return None

    def _missing(self, node: Node | None) -> list[Node]:
        """What of a context is on the host only, deepest first."""
        missing: list[Node] = []
        while node is not None and node.parent is not None and (node.evicted or not self._coordinator.cached(node)):
            if self._coordinator.cached(node) and node.backuped:
                missing.append(node)
            else:
                missing.clear()  # what hangs below something lost cannot be used
            node = node.parent
        return missing

    def _first_part(self, missing: list[Node]) -> Load | None:
        """From the top, as far as one load goes."""
        nodes: list[Node] = []
        tokens = 0
        for node in reversed(missing):
            if tokens >= self.least_tokens and tokens + len(node.key) > self._max_tokens:
                break
            nodes.append(node)
            tokens += len(node.key)
        return Load(nodes, tokens) if tokens >= self.least_tokens else None
