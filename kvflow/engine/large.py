"""Large requests that there is no memory for: others may have what there is, for a while."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from kvflow.engine.claims import ClaimTable
from kvflow.engine.turns import Asked, waited_s
from kvflow.engine.typical import TypicalWork

Key = TypeVar("Key", bound=Hashable)

_LARGE = 1 / 3
"""Share of the device from which on a request is large: so much is free at once only when several others have ended."""
_MOST_S = 60.0
"""Some programs take hours, and clients have time-outs."""


class LargeRequests:
    """Lets others go before a large request that does not fit, for as long as a typical program takes.

    SGLang lets nobody in behind a request that it has no memory for, so where contexts differ much in length memory for
    several small ones lies idle until there is enough for the large one. No request waits for others so for
    more than a minute, and none at all that is to go on with an answer, or whose workflow has ended.

    Source: backfilling of batch schedulers (Lifka, The ANL/IBM SP Scheduling System, 1995), with a bound on the wait
    where these reserve a time, since nobody knows when answers end.

    Args:
        claims: say since when a request's program has had its turn.
        typical: how long programs take.
    """

    def __init__(self, claims: ClaimTable, typical: TypicalWork) -> None:
        self._claims = claims
        self._typical = typical
        self._device_tokens = 0
        self._refused: set[Hashable] = set()

    def refused(self, key: Hashable, asked: Asked) -> bool:
        """There is no memory for a request; tells whether others may go before it."""
        most_s = min(self._typical.program_s or _MOST_S, _MOST_S)
        large = asked.tokens >= _LARGE * self._device_tokens
        live = self._claims.of(asked.claim.workflow_id) is not None  # without any, nobody tells the time
        if not (large and live) or asked.interrupted or waited_s(self._claims, asked) >= most_s:
            return False
        self._refused.add(key)
        return True

    def without(self, waiting: Sequence[Key], device_tokens: int) -> Sequence[Key]:
        """Leave out those that have been refused since memory last came back.

        Args:
            waiting: requests in the order of the queue.
            device_tokens: what the device holds.
        """
        self._device_tokens = device_tokens
        return [key for key in waiting if key not in self._refused] if self._refused else waiting

    def ask_again(self) -> None:
        """Memory has come back."""
        self._refused.clear()
