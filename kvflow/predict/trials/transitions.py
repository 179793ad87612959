"""Who runs next, given who ran before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kvflow.predict.bounds import MAX_NAME_CHARS, touched

MAX_CONTEXTS = 4096
"""Contexts of all workflow types together; the one not seen for longest is forgotten."""
MAX_FOLLOWERS = 32
"""Followers of one context; the rarest makes room for a new one."""
ORDER = 2
_HALF_LIFE = 256
"""So many further observations of a context let one count half."""
_GROWTH = 2 ** (1 / _HALF_LIFE)
_RESCALE_AT = 1e100
_BEFORE = ""
"""Stands for what was before the first agent; no agent is called so."""

_Context = tuple[str, tuple[str, ...]]


class Transitions:
    """Learns which agent follows which two.

    The probability after two agents is mixed with that after the last one alone, and that with the share of all
    steps. A context gives the next shorter one the weight ``d / (n + d)``, where ``n`` is how often it was seen
    (older observations counting less) and ``d`` how many different agents followed it: the more followers it has
    shown, the likelier another new one is. What the shortest context gives away belongs to agents of which nothing
    is known, so probabilities add up to less than 1.

    Source: interpolated Witten-Bell smoothing (method C of Witten and Bell, IEEE Trans. Inf. Theory 37(4), 1991), on
        counts that fade.
    Cost: O(followers of three contexts) a question, O(1) an observation.
    """

    def __init__(self, *, order: int = ORDER, max_contexts: int = MAX_CONTEXTS) -> None:
        """Start with nothing known.

        Args:
            order: how many preceding agents count.
            max_contexts: limit of the memory.

        Raises:
            ValueError: ``order`` is negative.
        """
        if order < 0:
            raise ValueError(f"order must be at least 0, got {order}")
        self._order = order
        self._contexts: OrderedDict[_Context, _Followers] = OrderedDict()
        self._max_contexts = max_contexts

    def __len__(self) -> int:
        return len(self._contexts)

    def observe(self, workflow_type: str, history: Sequence[str], nxt: str) -> None:
        """Learn that an agent ran (or END was reached) after those in ``history``, the latest of which stands last.

        An empty history is the start of a workflow. Names that are empty or longer than 128 characters are ignored,
        and so is what follows them.
        """
        recent = history[-self._order :] if self._order else ()
        if not all(0 < len(name) <= MAX_NAME_CHARS for name in (workflow_type, nxt, *recent)):
            return
        for context in self._contexts_of(recent):
            touched(self._contexts, (workflow_type, context), self._max_contexts, _Followers).add(nxt)

    def probabilities(self, workflow_type: str, history: Sequence[str]) -> dict[str, float]:
        """Return how likely each known agent is to run next.

        Returns:
            Probabilities of the agents seen in this workflow type, adding up to less than 1; empty if there are none.
        """
        result: dict[str, float] = {}
        for context in self._contexts_of(history[-self._order :] if self._order else ()):
            followers = self._contexts.get((workflow_type, context))
            if followers is not None:
                followers.mix_into(result)
        return result

    def _contexts_of(self, recent: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the contexts of an observation, the shortest first."""
        padded = (_BEFORE,) * (self._order - len(recent)) + tuple(recent)
        return [padded[self._order - length :] for length in range(self._order + 1)]


class _Followers:
    """Decayed counts of what followed one context."""

    __slots__ = ("_counts", "_total", "_unit")

    def __init__(self) -> None:
        self._counts: dict[str, float] = {}
        self._total = 0.0
        self._unit = 1.0

    def add(self, agent: str) -> None:
        if agent not in self._counts and len(self._counts) >= MAX_FOLLOWERS:
            rarest = min(self._counts, key=self._counts.__getitem__)
            self._total -= self._counts.pop(rarest)
        self._counts[agent] = self._counts.get(agent, 0.0) + self._unit
        self._total += self._unit
        self._unit *= _GROWTH
        if self._unit > _RESCALE_AT:
            unit, self._unit = self._unit, 1.0
            self._counts = {agent: count / unit for agent, count in self._counts.items()}
            self._total /= unit

    def mix_into(self, shorter: dict[str, float]) -> None:
        """Turn what the next shorter context says into what this one says."""
        whole = self._total + len(self._counts) * self._unit
        escape = len(self._counts) * self._unit / whole
        for agent in shorter:
            shorter[agent] *= escape
        for agent, count in self._counts.items():
            shorter[agent] = shorter.get(agent, 0.0) + count / whole
