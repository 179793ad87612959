"""Which programs may run: as many as have room for their contexts, the others wait at a tool boundary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvflow.policy.costs import ServingCosts

_PATIENCE = 4.0
"""Mean waits for tools are made of many short ones and a few very long ones: most programs return much sooner."""


_OVERDUE = 1.5
"""Response ratio up to which a program that does not fit lets smaller ones go before it."""


@dataclass(slots=True, kw_only=True)
class ProgramView:
    """What admission may know of a program; a program is a workflow with its sub-workflows.

    Attributes:
        live_tokens: context it has and will use again, or what its waiting requests bring, whichever is more.
        busy: it has requests that run.
        waiting: it has requests that wait.
        back_s: expected seconds until its next request when it has none; None when nothing is expected.
        held_s: how long it has been held back so far.
        served_s: how long it has not.
        admitted: it is one of those that run.
        tenant: whose it is.
    """

    live_tokens: int = 0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionMemory:
    """What there is to hold contexts in.

    Attributes:
        device_tokens: what may be planned with on the device.
        host_tokens: the host tier, which holds copies of what is on the device as well; 0 without one.
    """

    device_tokens: int
    host_tokens: int = 0


class ProgramAdmission:
    """Keeps the programs that run to those whose contexts fit together, where that pays.

    *Whether it pays.* Say n programs run and m of them fit. In the time each takes one step, all decode together for d
    seconds, and the n - m contexts that do not fit are restored one after the other, r seconds each: n steps take
    d + (n - m) r seconds. More programs mean more steps per second as long as d > m r. So programs are held only if
    restoring the contexts that fit takes longer than a step decodes.

    *What a tool costs.* A program that waits for a tool keeps its place while the share of the device that it occupies,
    for as long as it is expected to, weighs less than restoring its context: ``back_s * tokens / device <= restore_s``,
    with some patience. Restoring is a load from the host if all contexts have room there, else a computation.

    *Who.* The program that has waited longest for its size goes first (highest response ratio, with the time it has
    run for its size), so that short ones are not kept up by long ones and nobody starves. If its context does not fit
    now, others may go before it until it has waited half as long as it has run. Of several tenants, the one whose
    programs hold least goes first. When contexts outgrow the
    device the last in this order that runs no request gives up its place, the youngest if they are equal. The device
    never idles while somebody waits.

    Source: running programs to what fits is ThunderAgent's (arXiv 2602.13692, §4); the rule for tools is InferCept's
    comparison of preserve with discard or swap (arXiv 2402.01869, §4.1); highest response ratio next is Brinch Hansen's
    (1971); whether it pays is ours.
    """

    def __init__(self, costs: ServingCosts) -> None:
        self._costs = costs

    def admit(self, programs: Sequence[ProgramView], memory: AdmissionMemory, step_tokens: float) -> None:
        """Settle ``admitted`` of every program. Cost: O(programs log programs).

        Args:
            programs: by arrival, the oldest first.
            memory: what there is.
            step_tokens: tokens a request generates, on average.
        """
        loads = sum(program.live_tokens for program in programs) <= memory.host_tokens
        for program in programs:
            if program.admitted and not program.busy and not program.waiting:
                program.admitted = self._worth_its_place(program, memory, loads=loads)
        typical_s = 1.0 + sum(program.served_s for program in programs) / max(1, len(programs))
        by_turn = sorted(programs, key=lambda program: program.response_ratio(typical_s), reverse=True)
        used = self._shrink(by_turn, memory)
        waiting = [program for program in by_turn if program.waiting and not program.admitted]
        at_work = any(program.admitted and (program.busy or program.waiting) for program in programs)
        for program in _fairly(waiting, [program for program in programs if program.admitted]):
            if at_work and used + program.live_tokens > memory.device_tokens:
                if program.response_ratio(typical_s) > _OVERDUE:
                    break
                continue
            program.admitted = at_work = True
            used += program.live_tokens
        if not self._pays(programs, memory, step_tokens, loads=loads):
            for program in waiting:
                program.admitted = True

    def _worth_its_place(self, program: ProgramView, memory: AdmissionMemory, *, loads: bool) -> bool:
        if program.back_s is None:
            return False
        idle_s = program.back_s * program.live_tokens / max(1, memory.device_tokens)
        return idle_s <= _PATIENCE * self._restore_s(program.live_tokens, loads=loads)

    @staticmethod
    def _shrink(by_turn: Sequence[ProgramView], memory: AdmissionMemory) -> int:
        """Take places away, the last one's first, until the contexts of the others fit; returns their tokens."""
        used = sum(program.live_tokens for program in by_turn if program.admitted)
        for program in reversed(by_turn):
            if used <= memory.device_tokens:
                break
            if program.admitted and not program.busy:
                program.admitted = False
                used -= program.live_tokens
        return used

    def _pays(
        self, programs: Sequence[ProgramView], memory: AdmissionMemory, step_tokens: float, *, loads: bool
    ) -> bool:
        """Whether holding programs back makes the others faster by more than it costs."""
        restore_s = sum(self._restore_s(program.live_tokens, loads=loads) for program in programs if program.admitted)
        return restore_s > self._costs.decode_s(step_tokens, memory.device_tokens)

    def _restore_s(self, tokens: int, *, loads: bool) -> float:
        return self._costs.load_s(tokens) if loads else self._costs.compute_s(0, tokens)


def _fairly(waiting: Sequence[ProgramView], running: Sequence[ProgramView]) -> Iterator[ProgramView]:
    """Who waits, each tenant's in the order given; next is always one of the tenant whose programs hold least.

    A program counts for its tenant once it has been admitted, so whoever is passed over costs its tenant nothing.
    """
    held: Counter[str] = Counter()
    for program in running:
        held[program.tenant] += program.live_tokens
    lines: dict[str, list[ProgramView]] = {}
    for program in reversed(waiting):
        lines.setdefault(program.tenant, []).append(program)
    place = {id(program): index for index, program in enumerate(waiting)}
    while lines:
        tenant = min(lines, key=lambda name: (held[name], place[id(lines[name][-1])]))
        program = lines[tenant].pop()
        if not lines[tenant]:
            del lines[tenant]
        yield program
        if program.admitted:
            held[tenant] += program.live_tokens
