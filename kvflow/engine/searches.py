"""Searches through all claims, of which there may be thousands: what one has found is served until the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kvflow.engine.claim import Claim
from kvflow.engine.clock import Clock

MOST_FOUND = 64
"""Claims that one search finds."""


class Search:
    """Looks for claims that are wanted, and serves those it has found until a pause has passed.

    Depends on the replicated clock and on the claims alone, so that all ranks find the same.

    Args:
        clock: by which pauses pass.
        claims: all there are to look through.
        wanted: whether a claim is one of those that are looked for; asked again of what has been found.
        choose: of those, 64 at most, in the order in which they are served.
        pause_s: until the next search, in seconds.

    Attributes:
        next_s: when that will be, on the control plane's clock.
    """

    def __init__(
        self,
        clock: Clock,
        claims: Callable[[], Iterable[Claim]],
        *,
        wanted: Callable[[Claim], bool],
        choose: Callable[[Iterator[Claim]], list[Claim]],
        pause_s: Callable[[], float],
    ) -> None:
        self.next_s = 0.0
        self._clock = clock
        self._claims = claims
        self._wanted = wanted
        self._choose = choose
        self._pause_s = pause_s
        self._found: list[Claim] = []
        self._there_may_be_more = False

    def found(self) -> Sequence[Claim]:
        """What the latest search has found, as far as it is still wanted.

        Cost: O(1); O(claims) for a search, if its time has come or all that was found has been dealt with.
        """
        self._found = list(filter(self._wanted, self._found))
        if self._clock.now_s >= self.next_s or (self._there_may_be_more and not self._found):
            self._found = self._choose(filter(self._wanted, self._claims()))
            self._there_may_be_more = len(self._found) == MOST_FOUND
            self.next_s = self._clock.now_s + self._pause_s()
        return self._found
