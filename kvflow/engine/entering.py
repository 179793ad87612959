"""How a claim comes onto the nodes of its prompt, and what is learned from those it finds there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvflow.engine.claim import Claim
from kvflow.engine.owners import Owners
from kvflow.engine.ports import Node
from kvflow.engine.roles import Role

Path = Sequence[tuple[Node, int]]
"""A prompt's nodes with the position of each node's last token + 1, deepest first."""


def enter(held: Claim, path: Path, fixed_tokens: int, now_s: float, fixed_digest: int | None = None) -> None:
    """Enter a claim on the nodes of its prompt; what only its previous prompt needed is superseded.

    Args:
        held: the claim.
        path: the prompt.
        fixed_tokens: length of its fixed part; a node is fixed when it ends within it.
        now_s: clock reading.
        fixed_digest: of its declared fixed part; None for what the claim's latest prompt begins with.

    Cost: O(nodes that are new to the claim) and those of the fixed part.
    """
    fixed_tokens = _shared_tokens(held, path, fixed_tokens)
    known = held.own_prompt if fixed_digest is None else None
    prompt = held.own_prompt = held.role.prompt = known or held.role.prompt_of(fixed_digest)
    prompt.tokens = fixed_tokens
    _enter_tail(held, path, fixed_tokens, now_s)
    for node, end in reversed(path):
        if end > fixed_tokens:
            return
        _owners(node, end).hold_fixed(held, now_s)
        prompt.tip = node


def learn(held: Claim, path: Path, fixed_tokens: int, cached: Callable[[Node], bool]) -> None:
    """See which dynamic tails a prompt has extended, and what of ended workflows it has found.

    Its own last tail was not extended if it is still there; one that has been evicted could not be.

    Args:
        held: its claim, not yet entered.
        path: the prompt.
        fixed_tokens: length of its fixed part.
        cached: whether a node is in the cache at all.
    """
    for node, end in path:
        if end <= fixed_tokens:
            break
        if node.owners is None:
            continue
        revived: set[Role] = set()
        for claim, is_fixed in node.owners.claims.items():
            if not is_fixed:
                claim.settle_tail(reused=True)
                if claim.retired and claim.role not in node.owners.fixed:
                    revived.add(claim.role)
        for role in revived:
            role.settle_end(revived_tokens=len(node.key))
        if held in node.owners.claims:
            break
    if held.tip is not None and cached(held.tip):
        held.settle_tail(reused=False)
    held.tail_pending = False


def _shared_tokens(held: Claim, path: Path, fixed_tokens: int) -> int:
    """How much of a prompt is the role's rather than the workflow's: what is fixed, or was found in both."""
    for node, end in reversed(path):
        if end > fixed_tokens:
            if node.owners is None or not node.owners.shared_with(held):
                break
            fixed_tokens = end
    return fixed_tokens


def _enter_tail(held: Claim, path: Path, fixed_tokens: int, now_s: float) -> None:
    joined: Node | None = None
    for node, end in path:
        if end <= fixed_tokens:
            break
        owners = _owners(node, end)
        if held in owners.claims:
            joined = node
            break
        owners.hold_tail(held, now_s)
    tip, held.tip = held.tip, path[0][0]
    held.context_tokens, held.tail_standing = path[0][1], None
    held.tail_tokens = max(0, path[0][1] - fixed_tokens)
    held.tail_pending |= path[0][1] > fixed_tokens
    if tip is not None and tip is not joined:
        _supersede(held, tip, {id(node) for node, _ in path}, now_s)


def _supersede(held: Claim, tip: Node, current: set[int], now_s: float) -> None:
    node: Node | None = tip
    while node is not None and id(node) not in current and node.owners is not None:
        node.owners.supersede(held, now_s)
        node = node.parent


def _owners(node: Node, end_tokens: int) -> Owners:
    if node.owners is None:
        node.owners = Owners(end_tokens)
    return node.owners
