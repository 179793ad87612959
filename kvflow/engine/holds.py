"""Who is held back: the journal is told, and what they hold is wanted later than what those that run hold."""

from __future__ import annotations

from collections.abc import Mapping

from kvflow.engine.claims import ClaimTable
from kvflow.engine.journal import Journal
from kvflow.engine.program import Program

_FIRST_HOLD_S = 10.0
_HOLD_WEIGHT = 0.1


class Holds:
    """Follows from decision to decision who is held, and learns for how long.

    Args:
        claims: contexts, which are put off while somebody waits.
        journal: is told who is held back, and who is let in after that.

    Attributes:
        put_off: contexts of programs without a place are wanted later.
    """

    def __init__(self, claims: ClaimTable, journal: Journal | None) -> None:
        self.put_off = False
        self._claims = claims
        self._journal = journal
        self._hold_s = _FIRST_HOLD_S

    def follow(self, programs: Mapping[str, Program], room_tokens: int) -> None:
        """It has been decided anew who runs.

        Args:
            programs: all of them, by name.
            room_tokens: what is planned with for their contexts.
        """
        running = [program.view.live_tokens for program in programs.values() if program.view.admitted]
        reason = f"{len(running)} programs with {sum(running)} tokens run; there is room for {room_tokens}"
        for name, program in programs.items():
            view = program.view
            if view.waiting and not view.admitted and program.held_since_s is None:
                program.held_since_s = view.held_s
                if self._journal is not None:
                    self._journal.held(program.asking(name), view.live_tokens, reason)
            elif program.held_since_s is not None and (view.admitted or not view.waiting):
                held_s, program.held_since_s = view.held_s - program.held_since_s, None
                self._hold_s += _HOLD_WEIGHT * (held_s - self._hold_s)
                if self._journal is not None and view.admitted:
                    self._journal.admitted(program.asking(name), view.live_tokens, held_s)
        somebody_waits = any(program.held_since_s is not None for program in programs.values())
        self._put_off_uses(programs, round(self._hold_s, 1) if somebody_waits else 0.0)

    def end(self, programs: Mapping[str, Program]) -> None:
        """Nobody waits any more."""
        if self.put_off:
            self._put_off_uses(programs, 0.0)

    def _put_off_uses(self, programs: Mapping[str, Program], seconds: float) -> None:
        """Have the contexts of programs that wait for a place wanted so much later; 0 takes that back."""
        self.put_off = seconds > 0
        for program in programs.values():
            goes_on = program.view.admitted or program.view.busy
            for workflow_id in program.workflows:
                self._claims.hold(workflow_id, 0.0 if goes_on else seconds)
