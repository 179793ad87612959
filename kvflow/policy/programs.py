"""Programs, and the room that their contexts take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

GROWTH, DEAR_GROWTH = 0.07, 0.15
"""Share of the room left free when a program is let in: contexts grow, and a place taken away costs a load. Where the
room is all that the host keeps, it costs computing the context again."""
_LANE = 0.15
"""Share of the room that is found for small programs that are overdue, beyond it."""
_MOST_SHARED = 0.7
"""Share of the room that fixed prompts take at most when it is too small for them and the contexts behind them."""


@dataclass(slots=True, kw_only=True)
class ProgramView:
    """What admission may know of a program; a program is a workflow with its sub-workflows.

    Attributes:
        live_tokens: context of its own that it will use again, or what its waiting requests bring, whichever is more.
        fixed_tokens: length of each part of the fixed prompts it will use; programs have parts in common.
        fixed_due_s: expected seconds until each part is used; 0 if it is not in here.
        busy: it has requests that run, or are to go on with an answer: they need no place.
        waiting: it has others, which wait.
        back_s: expected seconds until its next request when it has none; None when nothing is expected.
        held_s: how long it has been held back so far.
        served_s: how long it has not.
        admitted: it is one of those that run.
        tenant: whose it is.
    """

    live_tokens: int = 0
    fixed_tokens: Mapping[Hashable, int] = field(default_factory=dict)
    fixed_due_s: Mapping[Hashable, float] = field(default_factory=dict)
    busy: bool = False
    waiting: bool = False
    back_s: float | None = None
    held_s: float = 0.0
    served_s: float = 0.0
    admitted: bool = False
    tenant: str = ""

    def response_ratio(self, typical_s: float) -> float:
        """Time held over time run. A typical time counts with both: one that has not begun may take as long."""
        return (self.held_s + typical_s) / (self.served_s + typical_s)


class Room:
    """What programs take of so much room: their contexts, and once each the parts of fixed prompts that are counted."""

    def __init__(
        self,
        programs: Iterable[ProgramView],
        room_tokens: int = 0,
        counted: Callable[[ProgramView], Collection[Hashable]] = lambda program: program.fixed_tokens,
        growth: float = GROWTH,
    ) -> None:
        self._room_tokens = room_tokens
        self._growth = growth
        self._counted = counted
        self._most_shared = int(_MOST_SHARED * room_tokens)
        self._own_tokens = self._shared_tokens = 0
        self._users: Counter[Hashable] = Counter()
        for program in programs:
            self.take(program)

    @property
    def taken_tokens(self) -> int:
        """What programs take, if all of it counts."""
        return self._own_tokens + self._shared_tokens

    @property
    def overfull(self) -> bool:
        """Whether places have to be taken away."""
        return self._own_tokens + min(self._shared_tokens, self._most_shared) > self._room_tokens

    def has_for(self, program: ProgramView, *, overdue: bool) -> bool:
        """Whether there is room for one more and for all to grow.

        Beyond the room for an overdue one that is small, or so large that waiting for room is in vain.
        """
        new_tokens = self._unused_tokens(program, self._counted(program))
        brought_tokens = program.live_tokens + new_tokens
        counted_tokens = min(self._shared_tokens, self._most_shared)
        if overdue and brought_tokens <= _LANE * self._room_tokens:
            return self._own_tokens + counted_tokens + brought_tokens <= (1 + _LANE) * self._room_tokens
        room_tokens = (1 - self._growth) * self._room_tokens
        if overdue and self.is_too_small_for(program):
            return not self.overfull
        known_tokens = self._shared_tokens if new_tokens else counted_tokens
        return self._own_tokens + known_tokens + brought_tokens <= room_tokens

    def is_too_small_for(self, program: ProgramView) -> bool:
        """Whether a program would not fit if there were no other."""
        return program.live_tokens > (1 - self._growth) * self._room_tokens

    def take(self, program: ProgramView) -> None:
        """A program is let in."""
        self._own_tokens += program.live_tokens
        parts = self._counted(program)
        self._shared_tokens += self._unused_tokens(program, parts)
        self._users.update(parts)

    def give_back(self, program: ProgramView) -> None:
        """A program has lost its place."""
        self._own_tokens -= program.live_tokens
        parts = self._counted(program)
        self._users.subtract(parts)
        self._shared_tokens -= self._unused_tokens(program, parts)

    def _unused_tokens(self, program: ProgramView, parts: Collection[Hashable]) -> int:
        """Of some parts of its fixed prompts, those that nobody else uses."""
        return sum(program.fixed_tokens[part] for part in parts if not self._users[part])
