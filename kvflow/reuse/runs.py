"""Runs of a prompt: what is put in for a text, whose it is, and what of the rest is worth being remembered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from kvflow.reuse.anchors import Anchor
from kvflow.reuse.plan import Plan
from kvflow.reuse.prompt import Prompt, Slot, SlotKey
from kvflow.reuse.segments import Match
from kvflow.reuse.splice import Graft


def worth_remembering(
    plan: Plan, gaps: Sequence[tuple[int, int]], found: Mapping[Slot, Sequence[Match]]
) -> Iterator[tuple[int, int]]:
    """Texts that are not at hand, nor put in from elsewhere, and those that are at hand behind approximations only."""
    put_in = [(graft.start, graft.end) for graft in plan.grafts]
    yield from (gap for gap in gaps if not any(start < gap[1] and gap[0] < end for start, end in put_in))
    for match in chain.from_iterable(found.values()):
        if not match.segment.exact and match.end <= plan.exact_tokens:
            yield match.start, match.end


def slots_of(prompt: Prompt, grafts: Sequence[Graft]) -> tuple[SlotKey, ...]:
    """The slots that runs are put into, each once."""
    owners = (max((slot for slot in prompt.slots if slot.start <= graft.start), key=_start) for graft in grafts)
    return tuple(dict.fromkeys(map(prompt.key, owners)))


def tokens_of(grafts: Iterable[Graft]) -> int:
    """How many tokens are put in."""
    return sum(graft.end - graft.start for graft in grafts)


def _start(slot: Slot) -> int:
    return slot.start


def plain(match: Match) -> Graft:
    """A text as it is at hand, to be moved at most."""
    return Graft(start=match.start, end=match.end, segment=match.segment, offset=match.offset)


def following(prompt: Prompt, start: int, end: int, anchors: tuple[tuple[Anchor, float], ...]) -> list[Graft]:
    """The prefix after a slot, as far as it is the same in all anchors that count."""
    here = prompt.tokens[start:end].tolist()
    same = len(here) if all(anchor.following is not None for anchor, _ in anchors) else 0
    for anchor, _ in anchors:
        equal = next((i for i, (a, b) in enumerate(zip(here, anchor.follows, strict=False)) if a != b), None)
        same = min(same, len(anchor.follows) if equal is None else equal)
    return [Graft(start=start, end=start + same, anchors=anchors)] if same else []
