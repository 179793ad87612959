"""How a claim comes onto the nodes of its prompt, and what is learned from those it finds there."""

from __future__ import annotations

from collections.abc import Sequence

from kvflow.engine.branches import Branch, mark_of
from kvflow.engine.claim import Claim
from kvflow.engine.owners import Owners
from kvflow.engine.ports import Node
from kvflow.engine.roles import Role

Path = Sequence[tuple[Node, int]]
"""A prompt's nodes with the position of each node's last token + 1, deepest first."""


def enter(
    held: Claim,
    path: Path,
    fixed_tokens: int,
    now_s: float,
    fixed_digest: int | None = None,
    digests: Sequence[int] = (),
) -> list[Branch]:
    """Enter a claim on the nodes of its prompt; what only prompts needed that this one replaces is superseded.

    Args:
        held: the claim.
        path: the prompt.
        fixed_tokens: length of its fixed part; a node is fixed when it ends within it.
        now_s: clock reading.
        fixed_digest: of its declared fixed part; None for what the claim's latest prompt begins with.
        digests: of the prompt's full units, as far as they are known.

    Returns:
        What it has replaced.

    Cost: O(nodes that are new to the claim) and those of the fixed part.
    """
    fixed_tokens = _shared_tokens(held, path, fixed_tokens)
    known = held.own_prompt if fixed_digest is None else None
    prompt = held.own_prompt = held.role.prompt = known or held.role.prompt_of(fixed_digest)
    prompt.tokens = fixed_tokens
    replaced = _enter_tail(held, path, fixed_tokens, now_s, digests)
    for node, end in reversed(path):
        if end > fixed_tokens:
            break
        _owners(node, end).hold_fixed(held, now_s)
        prompt.tip = node
    return replaced


def learn(held: Claim, path: Path, fixed_tokens: int) -> None:
    """See which dynamic tails a prompt has extended, and what of ended workflows it has found.

    Args:
        held: its claim, not yet entered.
        path: the prompt.
        fixed_tokens: length of its fixed part.
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


def _shared_tokens(held: Claim, path: Path, fixed_tokens: int) -> int:
    """How much of a prompt is the role's rather than the workflow's: what is fixed, or was found in both."""
    for node, end in reversed(path):
        if end > fixed_tokens:
            if node.owners is None or not node.owners.shared_with(held):
                break
            fixed_tokens = end
    return fixed_tokens


def _enter_tail(held: Claim, path: Path, fixed_tokens: int, now_s: float, digests: Sequence[int]) -> list[Branch]:
    joined: Node | None = None
    for node, end in path:
        if end <= fixed_tokens:
            break
        owners = _owners(node, end)
        if held in owners.claims:
            joined = node
            break
        owners.hold_tail(held, now_s)
    tip, mark, pending = held.tip, held.mark, held.tail_pending
    held.tip, held.mark = path[0][0], mark_of(digests) or mark
    held.context_tokens, held.tail_standing = path[0][1], None
    held.tail_tokens = max(0, path[0][1] - fixed_tokens)
    held.tail_pending = held.tail_tokens > 0
    branches = held.branches
    if (tip is None or tip is joined) and not branches.others:
        return []
    needed = {id(node) for node, _ in path}
    latest = Branch(tip, mark, pending) if tip is not None else None
    own, replaced = branches.enter(latest, needed, digests)
    for branch in branches.others:
        needed |= _identities(branch.tip)
    for branch in replaced if own is None else [own, *replaced]:
        _supersede(held, branch.tip, needed, now_s)
    return replaced


def _identities(tip: Node) -> set[int]:
    """Of a node and all above it."""
    found = set()
    node: Node | None = tip
    while node is not None:
        found.add(id(node))
        node = node.parent
    return found


def _supersede(held: Claim, tip: Node, needed: set[int], now_s: float) -> None:
    node: Node | None = tip
    while node is not None and id(node) not in needed and node.owners is not None:
        node.owners.supersede(held, now_s)
        node = node.parent


def _owners(node: Node, end_tokens: int) -> Owners:
    if node.owners is None:
        node.owners = Owners(end_tokens)
    return node.owners
