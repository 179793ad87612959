"""How a claim comes onto the nodes of its prompt, and what is learned from those it finds there."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

from kvflow.engine.branches import Branch, Entered, mark_of
from kvflow.engine.claim import Claim
from kvflow.engine.owners import Owners
from kvflow.engine.ports import Node
from kvflow.engine.roles import Role

Path = Sequence[tuple[Node, int]]
"""A prompt's nodes with the position of each node's last token + 1, deepest first."""


class Prompt(NamedTuple):
    """What a prompt is recognised by.

    Attributes:
        digests: of its full units.
        unit_tokens: tokens per digest.
        first: this is the first time that any of it is entered.
    """

    digests: Sequence[int]
    unit_tokens: int
    first: bool


def enter(
    held: Claim, path: Path, fixed_tokens: int, now_s: float, prompt: Prompt | None, fixed_digest: int | None = None
) -> Entered:
    """Enter a claim on the nodes of its prompt; what only prompts needed that this one replaces is superseded.

    Args:
        held: the claim.
        path: the prompt.
        fixed_tokens: length of its fixed part; a node is fixed when it ends within it.
        now_s: clock reading.
        prompt: what it is recognised by; None for the claim's latest one, which has come back into the cache.
        fixed_digest: of its declared fixed part; None for what the claim's latest prompt begins with.

    Cost: O(nodes that are new to the claim) and those of the fixed part; where the claim has several conversations, or
    begins another, O(nodes of their paths).
    """
    fixed_tokens = _shared_tokens(held, path, fixed_tokens)
    known = held.own_prompt if fixed_digest is None else None
    fixed = held.own_prompt = held.role.prompt = known or held.role.prompt_of(fixed_digest)
    fixed.tokens = fixed_tokens
    entered = _enter_tail(held, path, fixed_tokens, now_s, prompt)
    enter_fixed(held, path, fixed_tokens, now_s)
    return entered


def enter_fixed(held: Claim, path: Path, fixed_tokens: int, now_s: float) -> None:
    """Enter a claim on the nodes of its fixed prompt alone. Cost: O(nodes of it)."""
    for node, end in reversed(path):
        if end > fixed_tokens:
            return
        _owners(node, end).hold_fixed(held, now_s)
        held.fixed_prompt.tip = node


def learn(held: Claim, path: Path, fixed_tokens: int) -> bool:
    """See which dynamic tails a prompt has extended, and what of ended workflows it has found.

    Args:
        held: its claim, not yet entered.
        path: the prompt.
        fixed_tokens: length of its fixed part.

    Returns:
        Whether it has extended one of its own claim, which is left to :func:`settle`.
    """
    for node, end in path:
        if end <= fixed_tokens:
            break
        if node.owners is None:
            continue
        revived: set[Role] = set()
        for claim, is_fixed in node.owners.claims.items():
            if not is_fixed and claim is not held:
                claim.settle_tail(reused=True)
                if claim.retired and claim.role not in node.owners.fixed:
                    revived.add(claim.role)
        for role in revived:
            role.settle_end(revived_tokens=len(node.key))
        if held in node.owners.claims:
            return not node.owners.claims[held]
    return False


def settle(role: Role, entered: Entered, cached: Callable[[Node], bool], *, extends: bool) -> None:
    """Enter into experience what a prompt says of the tails of its own claim.

    Those that were not extended count if they are still there; one that has been evicted could not be.

    Args:
        role: the claim's.
        entered: what the prompt goes on from, and what it has replaced.
        cached: whether a node is in the cache at all.
        extends: it extends a tail of the claim, be it only a part of what it has replaced.
    """
    own = [] if entered.own is None else [entered.own]
    used: Sequence[Branch] = []
    unused: Sequence[Branch] = [*own, *entered.replaced]
    if extends:  # what it goes on from, or else a part of what it has replaced
        used, unused = (own, entered.replaced) if own else (entered.replaced, [])
    if entered.resumed or any(branch.pending for branch in used):
        role.settle_tail(reused=True)
    for branch in unused:
        if branch.pending and cached(branch.tip):
            role.settle_tail(reused=False)


def _shared_tokens(held: Claim, path: Path, fixed_tokens: int) -> int:
    """How much of a prompt is the role's rather than the workflow's: what is fixed, or was found in both."""
    for node, end in reversed(path):
        if end > fixed_tokens:
            if node.owners is None or not node.owners.shared_with(held):
                break
            fixed_tokens = end
    return fixed_tokens


def _enter_tail(held: Claim, path: Path, fixed_tokens: int, now_s: float, prompt: Prompt | None) -> Entered:
    joined: Node | None = None
    for node, end in path:
        if end <= fixed_tokens:
            break
        owners = _owners(node, end)
        if held in owners.claims:
            joined = node
            break
        owners.hold_tail(held, now_s)
    latest = Branch(held.tip, held.mark, held.tail_pending, held.tail_tokens) if held.tip is not None else None
    if prompt is not None:
        held.mark = mark_of(prompt.digests, fixed_tokens, prompt.unit_tokens)
    held.tip, held.context_tokens, held.tail_standing = path[0][0], path[0][1], None
    held.tail_tokens = max(0, path[0][1] - fixed_tokens)
    held.tail_pending = held.tail_tokens > 0
    branches, first = held.branches, prompt is not None and prompt.first
    if not branches.others and (latest is None or latest.tip is joined):
        if first:
            branches.seen(held.requests)
        return Entered(latest)
    ends = {id(node): end for node, end in path}
    if prompt is not None and first:
        entered = branches.enter(latest, ends, prompt.digests, held.requests)
    else:
        entered = branches.enter_more(latest, ends, held.mark)
    replaced = entered.replaced if entered.own is None else [entered.own, *entered.replaced]
    gone = [branch for branch in replaced if id(branch.tip) not in ends]
    if gone:
        needed = ends.keys() | {each for branch in branches.others for each in _identities(branch.tip)}
        for branch in gone:
            _supersede(held, branch.tip, needed, now_s)
    return entered


def _identities(tip: Node) -> Iterator[int]:
    """Of a node and all above it."""
    node: Node | None = tip
    while node is not None:
        yield id(node)
        node = node.parent


def _supersede(held: Claim, tip: Node, needed: Container[int], now_s: float) -> None:
    node: Node | None = tip
    while node is not None and id(node) not in needed and node.owners is not None:
        node.owners.supersede(held, now_s)
        node = node.parent


def _owners(node: Node, end_tokens: int) -> Owners:
    if node.owners is None:
        node.owners = Owners(end_tokens)
    return node.owners
