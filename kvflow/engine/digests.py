"""Prompts as chains of digests, one per unit of tokens: what the ghost list and the shadow cache remember."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from xxhash import xxh3_64_intdigest

MIN_UNIT_TOKENS = 64


def unit_tokens(page_tokens: int) -> int:
    """Least multiple of the page size that is at least 64 tokens."""
    return page_tokens * -(-MIN_UNIT_TOKENS // page_tokens)


def digests(tokens: Sequence[int], namespace: str, unit: int, known: Sequence[int] = ()) -> list[int]:
    """Digest every full unit of a prompt together with everything before it, as in the radix tree.

    Args:
        tokens: the prompt.
        namespace: what keeps equal tokens apart (extra key, cache salt).
        unit: tokens per digest.
        known: digests of its first units, which then need not be computed again.

    Cost: about 0.2 µs a unit.
    """
    chain = list(known[: len(tokens) // unit])
    raw = array("q", tokens[len(chain) * unit :])
    size = unit * raw.itemsize
    data = raw.tobytes()
    digest = chain[-1] if chain else xxh3_64_intdigest(namespace.encode("utf-8", "surrogatepass"))
    for start in range(0, len(data) - size + 1, size):
        digest = xxh3_64_intdigest(data[start : start + size], digest)
        chain.append(digest)
    return chain


def digest_of_head(chain: Sequence[int], tokens: int, unit: int) -> int | None:
    """Digest of a prompt's first tokens, as far as they fill units; None if they do not fill one.

    Args:
        chain: the prompt's :func:`digests`.
        tokens: so many of them.
        unit: tokens per digest.
    """
    units = min(tokens // unit, len(chain))
    return chain[units - 1] if units else None


def rest_tokens(tokens: int, unit: int, page: int) -> int:
    """What of so many tokens lies behind the last full unit of ``unit`` tokens, in whole pages of ``page`` tokens."""
    rest = tokens % unit
    return rest - rest % page


def remember(seen: OrderedDict[int, None], digests: Iterable[int], most: int) -> None:
    """Make digests the latest of those seen, and forget the oldest beyond ``most``. Cost: O(digests)."""
    for digest in digests:
        if digest in seen:
            seen.move_to_end(digest)
        else:
            seen[digest] = None
    while len(seen) > most:
        seen.popitem(last=False)
