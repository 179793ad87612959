"""Contexts of a program that have text in common: it takes its room once.

Agents that work on one conversation ask with the same text in turn. That is seen in what they ask with, not in the
radix tree, so that it is known of a request before it is computed, and of contexts that have left the cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple


class Context(NamedTuple):
    """What an agent goes on from, or asks with.

    Attributes:
        tokens: its length.
        fixed_tokens: of these, at the beginning, what its agent has in common with other programs.
        digests: chained, one per full unit; empty if they are not known.
    """

    tokens: int
    fixed_tokens: int = 0
    digests: Sequence[int] = ()


class Tail(NamedTuple):
    """What a context adds to longer ones of its program.

    Attributes:
        key: whose it is.
        own_tokens: what no longer one has.
        behind: whose context it begins with; None if it has nothing in common with them but a fixed prompt.
    """

    key: Hashable
    own_tokens: int
    behind: Hashable | None


def told_apart(contexts: Mapping[Hashable, Context], unit_tokens: int) -> list[Tail]:
    """Say what each of a program's contexts takes behind its fixed prompt.

    What is behind a context's last full unit is taken for common, too, where everything before it is.

    Args:
        contexts: by whose they are.
        unit_tokens: tokens per digest.

    Returns:
        One entry per context, that of the longest first.

    Source: the number of units in a trie that holds them; ours. Cost: O(units).
    """
    owners: dict[int, Hashable] = {}
    tails: list[Tail] = []
    for key, (tokens, fixed_tokens, digests) in sorted(contexts.items(), key=lambda item: -item[1].tokens):
        units = common_units(digests, owners)
        common_tokens = tokens if units and units == len(digests) else units * unit_tokens
        behind = owners[digests[units - 1]] if common_tokens > fixed_tokens else None
        tails.append(Tail(key, max(0, tokens - max(fixed_tokens, common_tokens)), behind))
        if len(contexts) > 1:
            owners.update(dict.fromkeys(digests[units:], key))
    return tails


def common_units(digests: Sequence[int], known: Mapping[int, object] | Sequence[int]) -> int:
    """How many units a context begins with as others do.

    Args:
        digests: of the context.
        known: digests of the others as keys of a mapping, or those of another one in their order.

    Cost: O(log units).
    """
    if isinstance(known, Mapping):
        return bisect_left(digests, True, key=lambda digest: digest not in known)
    alike = range(min(len(digests), len(known)))
    return bisect_left(alike, True, key=lambda unit: digests[unit] != known[unit])


def live_tokens(tails: Sequence[Tail], likelihood: Mapping[Hashable, float]) -> float:
    """Tokens of contexts that a program is expected to use.

    Args:
        tails: of the contexts, told apart.
        likelihood: that each is used.
    """
    likely = dict(likelihood)
    for tail in reversed(tails):  # who begins with another's context will use that, too
        if tail.behind is not None:
            likely[tail.behind] = max(likely[tail.behind], likely[tail.key])
    return sum(tail.own_tokens * likely[tail.key] for tail in tails)
