"""How much of the device admission had better not plan with, learned from what did not fit."""

from __future__ import annotations

_FIRST, _MOST = 0.05, 0.4
_RETRACTION = 0.02
_MISS = 0.005
"""For a context that has to be computed again although its program had a place."""
_DECAY = 0.999


class Margin:
    """A share of the device that is left out of plans.

    Attributes:
        share: of the device's tokens, between 0.05 and 0.4.
    """

    def __init__(self) -> None:
        self.share = _FIRST
        self._taught = (-1.0, 0.0)

    def retracted(self, now_s: float) -> bool:
        """A request has lost its memory to others; tells whether that was news."""
        return self._grow(_RETRACTION, now_s)

    def missed(self, share: float, now_s: float) -> bool:
        """A context is not on the device although its program had a place; tells whether that was news.

        Args:
            share: time that bringing it back takes, of that of computing it.
            now_s: seconds on the control plane's clock.
        """
        return self._grow(_MISS * min(1.0, share), now_s)

    def answered(self) -> None:
        """A request has been answered, or given up."""
        self.share = max(_FIRST, self.share * _DECAY)

    def _grow(self, step: float, now_s: float) -> bool:
        """Of what happens in one moment, what says most counts."""
        last_s, last_step = self._taught
        told = last_step if last_s == now_s else 0.0
        self._taught = (now_s, max(step, told))
        self.share = min(_MOST, self.share + max(0.0, step - told))
        return step > told
