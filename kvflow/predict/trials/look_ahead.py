"""When each agent runs next, by learned transitions instead of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvflow.graph import END, NextUse

if TYPE_CHECKING:
    from kvflow.predict.trials.transitions import Transitions

HORIZON = 8
PATHS = 8
_NEGLIGIBLE = 0.01


def first_uses(
    transitions: Transitions,
    workflow_type: str,
    history: Sequence[str],
    *,
    horizon: int = HORIZON,
    paths: int = PATHS,
) -> dict[str, NextUse]:
    """Return, for every agent that may run within the horizon, how likely it does, and after how many steps.

    Follows the likeliest continuations only, so probabilities are lower bounds. What a graph cannot say (who follows
    depends on the last two agents, not on one) is said here; what a graph knows of joins and parallel agents is not.

    Args:
        transitions: what has been learned.
        workflow_type: the kind of program.
        history: agents that ran so far, the one that runs now last.
        horizon: steps to look ahead.
        paths: continuations followed at a time.

    Source: beam search for the first-passage times of a Markov chain of the order of ``transitions``.
    Cost: at most ``horizon * paths`` questions to ``transitions`` of a few µs, about 20 where programs are regular.
    """
    found: dict[str, tuple[float, float]] = {}
    beam: list[tuple[float, tuple[str, ...], frozenset[str]]] = [(1.0, tuple(history[-8:]), frozenset())]
    for step in range(1, horizon + 1):
        longer: list[tuple[float, tuple[str, ...], frozenset[str]]] = []
        for mass, past, met in beam:
            for agent, share in transitions.probabilities(workflow_type, past).items():
                chance = mass * share
                if agent == END or chance < _NEGLIGIBLE:
                    continue
                if agent not in met:
                    probability, weighted = found.get(agent, (0.0, 0.0))
                    found[agent] = probability + chance, weighted + step * chance
                longer.append((chance, (*past[-7:], agent), met | {agent}))
        longer.sort(key=lambda path: -path[0])
        beam = longer[:paths]
    return {agent: NextUse(probability=p, steps=weighted / p) for agent, (p, weighted) in found.items()}
