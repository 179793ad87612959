"""What becomes of one prompt: what is put in, what is learned from it, and what has been counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvflow.reuse.prompt import Slot, SlotKey
from kvflow.reuse.segments import Match, Origin
from kvflow.reuse.splice import Graft

PoolKey = tuple[str, str, str, str, Origin]
"""Namespace, workflow type, slot, agent, and where the base KV comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A text of a slot that is at hand.

    Attributes:
        after: where the tokens end that follow it and stand in no slot, or begin its next known text.
        closed: the quality gate does not let it in.
    """

    slot: Slot
    match: Match
    after: int
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A text whose offset becomes known once the prompt has been computed.

    Attributes:
        reason: why it is computed.
    """

    pool: PoolKey
    found: Found
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of one prompt.

    Attributes:
        exact_tokens: KV from here on depends on what was put in.
        continued_tokens: where what was put in as a turn before had it ends; 0 if nothing was.
        missing: where in slots texts are that are not at hand, as [start, end).
        slots: whose texts are put in.
        check: slots for whose sake the prompt is to be computed again, spliced and exactly.
        reason: what is put in, or why nothing is; for people to read.
        spliced: whether something is put in.
    """

    exact_tokens: int
    reason: str
    slots: tuple[SlotKey, ...] = ()
    check: tuple[SlotKey, ...] = ()
    spliced: bool = False
    continued_tokens: int = 0
    grafts: tuple[Graft, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()

    @property
    def done(self) -> Plan:
        """What is left to know once the prompt is there, without the KV of others, which may be forgotten then."""
        return replace(self, grafts=(), lessons=(), missing=())


@dataclass(slots=True)
class Counters:
    """What has happened since the start.

    Attributes:
        prompts: that asked for reuse, counted again when they had been retracted.
        spliced: those into which something was put; copies made for checks apart, as in ``grafted_tokens``.
        slot_tokens: tokens of their slots that were not cached.
        grafted_tokens: tokens put in, once for each prompt ...
        continued_tokens: ... and those of which that was done in a turn before, so that they were put in as they were.
        learned: anchors added.
        segments: texts remembered.
        dense: slots computed although their text was at hand, by reason.
    """

    prompts: int = 0
    spliced: int = 0
    slot_tokens: int = 0
    grafted_tokens: int = 0
    continued_tokens: int = 0
    learned: int = 0
    segments: int = 0
    dense: dict[str, int] = field(default_factory=dict)
