"""Whether a step was an agent's last one, by what it ended with."""

from __future__ import annotations

from collections import OrderedDict

from kvflow.predict.bounds import MAX_NAME_CHARS, touched

MAX_KEYS = 1024
"""Agents remembered; the one not seen for longest is forgotten."""
MAX_KINDS = 32
"""Kinds of steps per agent; the rarest makes room for a new one."""
_SHRINKAGE = 2.0
_HALF_LIFE = 1024
_GROWTH = 2 ** (1 / _HALF_LIFE)
_RESCALE_AT = 1e100
_LEAST = 1e-3


class Endings:
    """Learns how telling it is what a step ended with: an answer without a tool call is often the last one.

    The kind of a step is any word that is known when it ends, e.g. the name of the tool it called and "" for none.
    :class:`~kvflow.predict.Survival` says how likely a further use is from the number of uses; this multiplies its
    odds by what the kind adds, as if kind and number were independent given the outcome.

    Names longer than 128 characters are ignored.

    Source: naive Bayes; each kind's share of last steps is shrunk towards the agent's.
    Cost: O(1).
    """

    def __init__(self, *, max_keys: int = MAX_KEYS) -> None:
        self._agents: OrderedDict[tuple[str, str], _Kinds] = OrderedDict()
        self._max_keys = max_keys

    def __len__(self) -> int:
        return len(self._agents)

    def observe(self, workflow_type: str, agent: str, kind: str, *, last: bool) -> None:
        """Learn that a step of some kind was the agent's last one, or was not."""
        if max(len(workflow_type), len(agent), len(kind)) > MAX_NAME_CHARS:
            return
        touched(self._agents, (workflow_type, agent), self._max_keys, _Kinds).add(kind, last=last)

    def again(self, workflow_type: str, agent: str, kind: str, before: float) -> float:
        """Return the probability that the agent's context is used again, in [0.001, 0.999].

        Args:
            workflow_type: the kind of program.
            agent: whose context.
            kind: of the step that has just ended.
            before: the probability as far as the number of uses tells.

        Raises:
            ValueError: ``before`` is not between 0 and 1.
        """
        if not 0 <= before <= 1:
            raise ValueError(f"before must be between 0 and 1, got {before}")
        kinds = self._agents.get((workflow_type, agent))
        if kinds is not None and 0 < before < 1:
            odds = before / (1 - before) * kinds.factor(kind)
            before = odds / (1 + odds)
        return min(1 - _LEAST, max(_LEAST, before))


class _Kinds:
    """Decayed counts of steps and last steps, by kind and of all kinds (None)."""

    __slots__ = ("_counts", "_unit")

    def __init__(self) -> None:
        self._counts: dict[str | None, list[float]] = {None: [0.0, 0.0]}
        self._unit = 1.0

    def add(self, kind: str, *, last: bool) -> None:
        counts = self._counts
        if kind not in counts and len(counts) > MAX_KINDS:
            del counts[min((name for name in counts if name is not None), key=lambda name: counts[name][0])]
        for name in (None, kind):
            count = counts.setdefault(name, [0.0, 0.0])
            count[0] += self._unit
            count[1] += self._unit * last
        self._unit *= _GROWTH
        if self._unit > _RESCALE_AT:
            self._counts = {name: [value / self._unit for value in count] for name, count in counts.items()}
            self._unit = 1.0

    def factor(self, kind: str) -> float:
        """Return by how much the odds of a further step are better after this kind than on average."""
        all_steps, all_lasts = self._counts[None]
        # One imagined step that was the last one and one that was not, of all kinds as real ones are: neither is ever
        # impossible, and where no kind is known to differ, none does.
        share = (all_lasts + self._unit) / (all_steps + 2 * self._unit)
        steps, lasts = self._counts.get(kind, (0.0, 0.0))
        imagined, shrinkage = self._unit * steps / all_steps, _SHRINKAGE * self._unit
        own = (lasts + imagined + shrinkage * share) / (steps + 2 * imagined + shrinkage)
        return (1 - own) / own * share / (1 - share)
