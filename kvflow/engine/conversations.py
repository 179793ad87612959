"""Contexts of a program that have text in common: it takes its room once.

Agents that work on one conversation ask with the same text in turn. In the radix tree each one's context is then the
path to a node on that of the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from kvflow.engine.claim import Claim


class Tail(NamedTuple):
    """What an agent's context adds to longer ones of its program.

    Attributes:
        key: whose it is.
        own_tokens: what no longer one has.
        behind: whose context it begins with; None if it has nothing in common with them but a fixed prompt.
    """

    key: Hashable
    own_tokens: int
    behind: Hashable | None


def told_apart(claims: Mapping[Hashable, Claim]) -> list[Tail]:
    """Say what each of a program's contexts takes behind its fixed prompt.

    Args:
        claims: of contexts that the program is expected to use, by whose they are.

    Returns:
        One entry per claim, that of the longest context first.

    Source: the number of nodes of a trie that holds them; ours. Cost: O(nodes of the contexts).
    """
    if len(claims) == 1:  # most programs, and what follows takes a while
        return [Tail(key, claim.tail_tokens, None) for key, claim in claims.items()]
    owners: dict[int, Hashable] = {}
    tails: list[Tail] = []
    for key, claim in sorted(claims.items(), key=lambda item: -item[1].tail_tokens):
        tail = Tail(key, claim.tail_tokens, None)
        node, walked_tokens = claim.tip, 0
        while node is not None and node.parent is not None and walked_tokens < claim.tail_tokens:
            owner = owners.setdefault(id(node), key)
            if owner != key:
                tail = Tail(key, walked_tokens, owner)
                break
            walked_tokens += len(node.key)
            node = node.parent
        tails.append(tail)
    return tails


def live_tokens(tails: list[Tail], claims: Mapping[Hashable, Claim], asked: Mapping[Hashable, float]) -> float:
    """Tokens of contexts that a program is expected to use, and of what its requests bring.

    Args:
        tails: of the claims, told apart.
        claims: of contexts that are expected to be used.
        asked: what requests take, without what is fixed, by whose they are.

    Cost: O(claims + requests).
    """
    likelihood = {key: 1.0 if key in asked else claim.likelihood for key, claim in claims.items()}
    tokens = sum(asked[key] for key in asked if key not in claims)
    for tail in reversed(tails):  # who begins with another's context will use that, too
        if tail.behind is not None:
            likelihood[tail.behind] = max(likelihood[tail.behind], likelihood[tail.key])
        tokens += max(0.0, asked.get(tail.key, 0.0) - claims[tail.key].tail_tokens)
        tokens += tail.own_tokens * likelihood[tail.key]
    return tokens
