"""Why something was evicted, loaded or held back: the latest decisions, for people to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

from kvflow.engine.clock import Clock
from kvflow.engine.ports import Node
from kvflow.engine.stalls import Stalls
from kvflow.policy import UNKNOWN, EvictionClass

_MOST_OWNERS = 4
_MOST_WORKFLOWS = 32

Event = Literal[
    "evicted", "loaded", "loaded ahead", "stalled", "held back", "let in", "reused", "computed", "commanded"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decision.

    Attributes:
        at_s: on the control plane's clock.
        owners: (workflow, agent) it concerns, the first few of them.
        tokens: how much of a context it is about.
        reason: in words.
        seconds: how long it was held back, or waited for loads.
    """

    at_s: float
    event: Event
    owners: tuple[tuple[str, str], ...]
    tokens: int
    reason: str
    seconds: float = 0.0


class Journal:
    """Keeps the latest entries in bounded memory. Takes no part in any decision.

    Args:
        clock: tells the time of entries.
        capacity: entries kept.

    Attributes:
        stalls: what waits for loads add up to, beyond the entries that are kept.
    """

    def __init__(self, clock: Clock, capacity: int) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=capacity)
        self.stalls = Stalls()

    def evicted(self, node: Node, tier: str, cls: EvictionClass, tokens: int) -> None:
        """A node leaves a tier."""
        if self._entries.maxlen:
            gone = f"from the {tier}, as {cls.name.lower()}"
            if tier == "device" and not node.backuped:
                gone += ", without a copy on the host"
            self._enter("evicted", _owners(node), tokens, f"{gone}; {self._expectation(node)}")

    def loaded(self, workflow_id: str, agent: str, tokens: int) -> None:
        """A request has its context loaded back."""
        self._enter("loaded", ((workflow_id, agent),), tokens, "a request needs it")

    def ahead(self, node: Node, tokens: int) -> None:
        """A context is loaded back before a request asks."""
        self._enter("loaded ahead", _owners(node), tokens, self._expectation(node))

    def stalled(self, workflow_id: str, agent: str, request_id: str, seconds: float) -> None:
        """The batch in which a request computed the first part of its prompt waited for loads."""
        self.stalls.add(workflow_id, agent, request_id, self._clock.now_s, seconds)
        self._enter("stalled", ((workflow_id, agent),), 0, f"its batch waited {seconds:.3f} s for loads", seconds)

    def held(self, workflow_ids: Iterable[str], tokens: int, reason: str) -> None:
        """A program waits for its turn, with those of its sub-workflows whose requests do."""
        self._enter("held back", _all_of(workflow_ids), tokens, reason)

    def admitted(self, workflow_ids: Iterable[str], tokens: int, waited_s: float) -> None:
        """A program that waited runs."""
        self._enter("let in", _all_of(workflow_ids), tokens, f"after {waited_s:.2f} s", waited_s)

    def reused(self, workflow_id: str, agent: str, tokens: int, reason: str) -> None:
        """A prompt that asked for reuse has been planned; nothing of it is put in if there are no tokens."""
        self._enter("reused" if tokens else "computed", ((workflow_id, agent),), tokens, reason)

    def commanded(self, workflow_id: str, agent: str, tokens: int, reason: str) -> None:
        """A command has been carried out, or not."""
        self._enter("commanded", ((workflow_id, agent),), tokens, reason)

    def read(self, workflow_id: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The latest entries, the oldest of them first; of one workflow if it is named."""
        wanted = (
            entry
            for entry in reversed(self._entries)
            if workflow_id is None or any(owner == workflow_id for owner, _ in entry.owners)
        )
        found = [entry for entry, _ in zip(wanted, range(limit), strict=False)]
        return [asdict(entry) for entry in reversed(found)]

    def _expectation(self, node: Node) -> str:
        standing = node.owners.standing(self._clock) if node.owners is not None else UNKNOWN
        if standing.next_s is None:
            return "no further use is expected"
        return f"a use is expected in {standing.next_s:.2f} s with probability {standing.probability:.2f}"

    def _enter(
        self, event: Event, owners: tuple[tuple[str, str], ...], tokens: int, reason: str, seconds: float = 0.0
    ) -> None:
        self._entries.append(
            Entry(at_s=self._clock.now_s, event=event, owners=owners, tokens=tokens, reason=reason, seconds=seconds)
        )


def _all_of(workflow_ids: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((workflow_id, "") for workflow_id in islice(workflow_ids, _MOST_WORKFLOWS))


def _owners(node: Node) -> tuple[tuple[str, str], ...]:
    """Whose a node is: claims on it, or else the agents whose fixed prompt it belongs to."""
    if node.owners is None:
        return ()
    claims = tuple((claim.workflow_id, claim.role.agent) for claim in node.owners.claims)
    return claims[:_MOST_OWNERS] or tuple(("", role.agent) for role in node.owners.fixed)[:_MOST_OWNERS]
