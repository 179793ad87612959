"""One version of a graph, compiled to indices and bit masks for the algorithms that run at every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from kvflow.errors import UnknownAgentError
from kvflow.graph.nodes import END, START, Edge, Join

Arrived = Mapping[int, int]
"""Target node -> mask of the predecessors that have finished without the target having started since."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """The edges of one graph version, by node index.

    A mask is an int whose bit ``i`` stands for node ``i``. Agents without out-edges lead to END here if no edge of
    the graph does.

    Attributes:
        names: START, the agents in insertion order, END.
        successors: per node, all its targets.
        always: per node, the targets it starts unconditionally.
        alternatives: per node, the targets of its exclusive branch with their probabilities.
        followers: per node, the mask of ``successors``.
        predecessors: per node, the mask of all its sources.
        required: per node, the mask of sources an ALL-join waits for; 0 for every other node. Back edges of natural
            loops are not in it: their source can only run after the join has.
        memo: results of earlier computations on this version, kept by their owners.
    """

    names: tuple[str, ...]
    index: Mapping[str, int]
    successors: tuple[tuple[int, ...], ...]
    always: tuple[tuple[int, ...], ...]
    alternatives: tuple[tuple[tuple[int, float], ...], ...]
    followers: tuple[int, ...]
    predecessors: tuple[int, ...]
    required: tuple[int, ...]
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    def mask(self, names: Iterable[str]) -> int:
        """Return the mask of the named nodes.

        Raises:
            UnknownAgentError: a name is not in the graph.
        """
        mask = 0
        for name in names:
            if name not in self.index:
                raise UnknownAgentError(name, tuple(sorted(self.names[1:-1])))
            mask |= 1 << self.index[name]
        return mask

    def arrived(self, satisfied: Iterable[Edge]) -> dict[int, int]:
        """Group satisfied edges by target; pairs that are no edges of this version are ignored."""
        arrived: dict[int, int] = {}
        for source, target in satisfied:
            u, v = self.index.get(source), self.index.get(target)
            if u is not None and v is not None and self.followers[u] >> v & 1:
                arrived[v] = arrived.get(v, 0) | 1 << u
        return arrived

    def reachable(self, mask: int, avoiding: int = 0) -> int:
        """Return the nodes of ``mask`` and all that follow from them without entering a node of ``avoiding``.

        Cost: O(V) mask operations.
        """
        seen = todo = mask
        while todo:
            lowest = todo & -todo
            new = self.followers[lowest.bit_length() - 1] & ~seen & ~avoiding
            seen |= new
            todo = todo ^ lowest | new
        return seen

    def waits_for(self, join: int, active: int, arrived: Arrived) -> int:
        """Return the mask of predecessors that hold an ALL-join back; 0 for every other node.

        A predecessor that can no longer run before the join does is not waited for: the branch to it was not taken,
        or only the join itself leads to it.

        Args:
            join: the node asked about.
            active: mask of the nodes that run now.
            arrived: what has arrived where.

        Cost: O(V) mask operations.
        """
        missing = self.required[join] & ~arrived.get(join, 0)
        if not missing:
            return 0
        sources = active
        for target in arrived:
            if target != join:
                sources |= 1 << target
        return missing & self.reachable(sources, avoiding=1 << join)

    def is_due(self, node: int, active: int, arrived: Arrived) -> bool:
        """Say whether what has arrived at a node is enough to start it. Arguments as in ``waits_for``."""
        came = arrived.get(node, 0)
        if came & ~self.required[node]:
            return True
        return bool(came) and not self.waits_for(node, active, arrived)


def members(mask: int) -> Iterator[int]:
    """Yield the nodes of a mask in ascending order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def compile_flow(digraph: nx.DiGraph) -> Flow:
    """Compile a graph whose nodes carry ``join`` and whose edges carry ``probability``.

    Source: natural loops and dominators, Aho, Lam, Sethi, Ullman, "Compilers", section 9.6.
    Cost: O(V^2) for the dominators (Cooper, Harvey, Kennedy), at most O(V) per edge into an ALL-join.
    """
    agents = [name for name in digraph if name not in (START, END)]
    edges = list(digraph.edges(data="probability"))
    if not digraph.pred[END]:
        edges += [(name, END, None) for name in agents if not digraph.succ[name]]
    names = (START, *agents, END)
    index = {name: i for i, name in enumerate(names)}
    dominator: dict[str, str] = nx.immediate_dominators(digraph, START)
    successors: list[list[int]] = [[] for _ in names]
    always: list[list[int]] = [[] for _ in names]
    alternatives: list[list[tuple[int, float]]] = [[] for _ in names]
    predecessors, required = [0] * len(names), [0] * len(names)
    for source, target, probability in edges:
        u, v = index[source], index[target]
        successors[u].append(v)
        predecessors[v] |= 1 << u
        if probability is None:
            always[u].append(v)
        else:
            alternatives[u].append((v, probability))
        if digraph.nodes[target]["join"] is Join.ALL and not _dominates(dominator, target, source):
            required[v] |= 1 << u
    return Flow(
        names=names,
        index=index,
        successors=tuple(map(tuple, successors)),
        always=tuple(map(tuple, always)),
        alternatives=tuple(map(tuple, alternatives)),
        followers=tuple(sum(1 << v for v in targets) for targets in successors),
        predecessors=tuple(predecessors),
        required=tuple(required),
    )


def _dominates(dominator: Mapping[str, str], above: str, node: str) -> bool:
    while node != above:
        parent = dominator.get(node, node)
        if parent == node:
            return False
        node = parent
    return True
