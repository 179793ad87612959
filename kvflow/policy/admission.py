"""Which programs may run: as many as have room for their contexts, the others wait at a tool boundary."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kvflow.policy.costs import ServingCosts
from kvflow.policy.programs import DEAR_GROWTH, GROWTH, ProgramView, Room
from kvflow.policy.throughput import AdmissionMemory, Step, best_share, loads_cheaply

_PATIENCE = 4.0
"""Mean waits for tools are made of many short ones and a few very long ones: most programs return much sooner."""

_OVERDUE = 2.5
"""Response ratio up to which a program that does not fit lets others go before it."""

_TURN = 10.0
"""Times that of a typical program that one may run, and another wait for it."""
_TYPICAL_S = 60.0
"""What a typical program takes, at most, until one has ended: some never do, and nobody should wait ever longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What programs may take.

    Attributes:
        room_tokens: of contexts: all if they fit, else what the device holds, or more that take turns.
        spare_tokens: what the device holds beyond the contexts of all programs; negative if it does not hold them.
    """

    room_tokens: int
    spare_tokens: int

    @property
    def all_fit(self) -> bool:
        """Whether the device holds the contexts of all programs."""
        return self.spare_tokens >= 0


class ProgramAdmission:
    """Keeps the programs that run to those whose contexts fit together, and to more where that pays.

    *How many.* More programs than fit take more steps per second as long as bringing their contexts back costs less
    than decoding more answers together gains: loads from the host are made while others compute, until the link is what
    all wait for; what the host has not kept is computed again. So much room is planned with as those programs need
    that take about the most steps per second (:mod:`kvflow.policy.throughput`): that of the device, or more.

    *What a tool costs.* A program that waits for a tool keeps its place while the share of the room that it occupies,
    for as long as it is expected to, weighs less than restoring its context: ``back_s * tokens / room <= restore_s``,
    with some patience. What waits leaves first, and whoever takes its place fills the host as well; so restoring is
    computing again, or loading if that takes longer. Fixed prompts of agents that it is expected to run later are
    weighed likewise, and kept the longer the more programs share them.

    *Who.* The program that has waited longest for its size goes first (highest response ratio, with the time it has run
    for its size), so that short ones are not kept up by long ones and nobody starves. If its context does not fit now,
    others may go before it until it is overdue: until it has waited two and a half times as long as it has run, a
    typical program's time added to both. Then nobody else is let in before it, and it is itself, beyond the room, if it
    is small, or too large for an empty one: nobody need wait until all others have left. Of several tenants, the one
    whose programs hold least goes first. When contexts outgrow the room the largest one that no request computes with
    gives up its place, the youngest's of equal ones, and an overdue one last: so few have to. Where loading is next to
    nothing, the room is what the host keeps, and a context that has left it is computed again: there more of it stays
    free, and who has run for the shortest time gives up its place. One that has run for ten times as long as a typical
    program gives its place to one that has waited for as long, and two and a half times as long for its size; what it
    computes is ended first. So nobody waits for programs that never end. The device never idles while somebody waits.

    *What fits.* Contexts add up, fixed prompts count once. So programs of the types that run already, which bring no
    fixed prompts of their own, find room before others do, and what one of them has computed the next one finds. Where
    there is too little room for the fixed prompts of those that run, holding programs gains less, since requests whose
    fixed prompt is cached have their turn first: of these, no more than seven tenths of the room counts.

    Source: running programs to what fits is ThunderAgent's (arXiv 2602.13692, §4); the rule for tools is InferCept's
    comparison of preserve with discard or swap (arXiv 2402.01869, §4.1); highest response ratio next is Brinch Hansen's
    (1971); how many is ours.
    """

    def __init__(self, costs: ServingCosts) -> None:
        self._costs = costs

    def admit(
        self, programs: Sequence[ProgramView], memory: AdmissionMemory, step: Step, program_s: float = 0.0
    ) -> Places:
        """Settle ``admitted`` of every program. Cost: O(programs log programs).

        Args:
            programs: by arrival, the oldest first.
            memory: what there is.
            step: what their steps are like.
            program_s: what a program takes from its first request to its end; 0 if that is not known.
        """
        tokens = Room(programs).taken_tokens
        share = best_share(len(programs), tokens, memory, step, self._costs)
        room_tokens = round(share * tokens)
        if share == 1:
            for program in programs:
                program.admitted |= program.waiting
        worth = partial(self._worth_its_room, max(room_tokens, memory.device_tokens), memory.host_tokens > 0)
        for program in programs:
            if program.admitted and not program.busy and not program.waiting:
                program.admitted = program.back_s is not None and worth(program.live_tokens, program.back_s)
        mean_s = sum(program.served_s for program in programs) / max(1, len(programs))
        typical_s = 1.0 + (program_s or min(mean_s, _TYPICAL_S))
        by_turn = sorted(programs, key=lambda program: program.response_ratio(typical_s), reverse=True)
        present = [program for program in programs if program.admitted or program.waiting or program.busy]
        sharers = Counter(part for program in present for part in program.fixed_tokens)
        counted = partial(self._counted, worth, sharers)
        waiting = [program for program in by_turn if program.waiting and not program.admitted]
        admitted = [program for program in programs if program.admitted]
        longest_s = _TURN * (program_s or _TYPICAL_S)
        # the room is what the host keeps, and what leaves that is lost
        dear = room_tokens > memory.device_tokens and loads_cheaply(step, self._costs)
        space = partial(Room, room_tokens=room_tokens, counted=counted, growth=DEAR_GROWTH if dear else GROWTH)
        first = next(_fairly(waiting, admitted), None)
        if first is not None and first.held_s >= longest_s:
            self._make_way(first, admitted, space(admitted), typical_s, longest_s)
        room = space(program for program in programs if program.admitted or program.busy)
        self._shrink(programs, room, typical_s, by_size=not dear)
        at_work = any(program.busy or (program.admitted and program.waiting) for program in programs)
        if not at_work:  # who has just lost its place may be the only one that asks for anything
            waiting = [program for program in by_turn if program.waiting and not program.admitted]
        for program in _fairly(waiting, [program for program in programs if program.admitted]):
            overdue = program.response_ratio(typical_s) > _OVERDUE
            if at_work and not room.has_for(program, overdue=overdue):
                if overdue:
                    break
                continue
            program.admitted = at_work = True
            room.take(program)
        return Places(room_tokens=room_tokens, spare_tokens=memory.device_tokens - tokens)

    def need_s(self, tokens: int, found_tokens: int, host_tokens: int) -> float:
        """Seconds of the server that a prompt needs until it generates.

        Args:
            tokens: its length.
            found_tokens: what is cached of it.
            host_tokens: of these, what has to be loaded from the host.
        """
        found_tokens = min(tokens, found_tokens)
        return self._costs.load_s(min(host_tokens, found_tokens)) + self._costs.compute_s(found_tokens, tokens)

    def _worth_its_room(self, room_tokens: int, has_host: bool, tokens: int, back_s: float) -> bool:
        idle_s = back_s * tokens / max(1, room_tokens)
        restore_s = self._costs.compute_s(0, tokens)
        if has_host:
            restore_s = max(restore_s, self._costs.load_s(tokens))
        return idle_s <= _PATIENCE * restore_s

    @staticmethod
    def _counted(
        worth: Callable[[int, float], bool], sharers: Mapping[Hashable, int], program: ProgramView
    ) -> list[Hashable]:
        """Parts of a program's fixed prompts that are worth their room; of several programs one uses them sooner."""
        due_s = program.fixed_due_s
        return [
            part for part, tokens in program.fixed_tokens.items() if worth(tokens, due_s.get(part, 0.0) / sharers[part])
        ]

    @staticmethod
    def _make_way(
        first: ProgramView, admitted: Sequence[ProgramView], room: Room, typical_s: float, longest_s: float
    ) -> None:
        """Have programs that have run for long give up their places, as soon as nothing of theirs is computed."""
        held: Counter[str] = Counter()
        for program in admitted:
            held[program.tenant] += program.live_tokens
        ratio = first.response_ratio(typical_s)
        overdue = ratio > _OVERDUE
        leave: list[ProgramView] = []
        for program in sorted(admitted, key=lambda program: program.response_ratio(typical_s)):
            if room.has_for(first, overdue=overdue):
                break
            long = program.served_s >= longest_s and ratio > _OVERDUE * program.response_ratio(typical_s)
            if long and held[program.tenant] >= held[first.tenant]:
                room.give_back(program)
                leave.append(program)
        if len(leave) == len(admitted) or room.has_for(first, overdue=overdue):
            for program in leave:
                program.admitted = False

    @staticmethod
    def _shrink(programs: Sequence[ProgramView], room: Room, typical_s: float, *, by_size: bool) -> None:
        """Take places away until the others fit: of the largest contexts, or of who has run for the shortest time."""

        def keeps(program: ProgramView) -> tuple[bool, float]:
            overdue = program.response_ratio(typical_s) > _OVERDUE
            return overdue, -program.live_tokens if by_size else program.served_s

        for program in sorted((one for one in reversed(programs) if one.admitted and not one.busy), key=keeps):
            if not room.overfull:
                return
            if program.waiting and program.response_ratio(typical_s) > _OVERDUE and room.is_too_small_for(program):
                continue  # it has its turn, and nobody else is let in
            program.admitted = False
            room.give_back(program)


def _fairly(waiting: Sequence[ProgramView], running: Sequence[ProgramView]) -> Iterator[ProgramView]:
    """Who waits, each tenant's in the order given; next is always one of the tenant whose programs hold least.

    A program counts for its tenant once it has been admitted, so whoever is passed over costs its tenant nothing.
    """
    held: Counter[str] = Counter()
    for program in running:
        held[program.tenant] += program.live_tokens
    lines: dict[str, list[tuple[int, ProgramView]]] = {}
    for place, program in reversed([*enumerate(waiting)]):
        lines.setdefault(program.tenant, []).append((place, program))
    turns = [(held[tenant], line[-1][0], tenant) for tenant, line in lines.items()]
    heapq.heapify(turns)
    while turns:
        _, _, tenant = heapq.heappop(turns)
        _, program = lines[tenant].pop()
        yield program
        if program.admitted:
            held[tenant] += program.live_tokens
        if lines[tenant]:
            heapq.heappush(turns, (held[tenant], lines[tenant][-1][0], tenant))
