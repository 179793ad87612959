"""Among which leaves prediction may choose."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """The leaves of a tier among which prediction chooses: the oldest ones, and what only ended workflows have used,
    which is a fact and no prediction. The others leave by age, after them.

    Attributes:
        share: the oldest make up this share of the tokens of all leaves; with 0 prediction has no choice at all.
        window_tokens: and no more than so many.
    """

    share: float = 1.0
    window_tokens: float = math.inf

    @property
    def free(self) -> bool:
        """Whether that is all of them."""
        return self.share >= 1 and self.window_tokens == math.inf

    @property
    def none(self) -> bool:
        """Whether that is none of them."""
        return self.share <= 0


FREE_CHOICE = Choice()
NO_CHOICE = Choice(share=0.0, window_tokens=0.0)
