"""What programs and their steps are like on this server, learned from those that come."""

from __future__ import annotations

from math import exp, log

from kvflow.policy import Step

_WEIGHT = 0.02
"""Of the latest step in the averages."""
_PROGRAM_WEIGHT = 0.1
_LEAST_S = 0.1


class TypicalWork:
    """Moving averages over steps: of prompts, what is new in them, answers, and pauses between two of a program.

    Attributes:
        program_s: what a program takes from its first request to its end, without the time it is held: a geometric
            mean, since most are short and a few very long; 0 if none has ended.
    """

    def __init__(self) -> None:
        self.program_s = 0.0
        self.generated_tokens = 0.0
        self._prompt_tokens = self._new_tokens = self._pause_s = 0.0

    @property
    def step(self) -> Step:
        """What is known."""
        return Step(
            prompt_tokens=self._prompt_tokens,
            new_tokens=self._new_tokens,
            generated_tokens=self.generated_tokens,
            pause_s=self._pause_s,
        )

    def asked(self, tokens: int, new_tokens: int) -> None:
        """A request has come.

        Args:
            tokens: length of its prompt.
            new_tokens: of these, what no step before it has computed.
        """
        weight = _WEIGHT if self._prompt_tokens else 1.0
        self._prompt_tokens += weight * (tokens - self._prompt_tokens)
        self._new_tokens += weight * (new_tokens - self._new_tokens)

    def answered(self, generated_tokens: int) -> None:
        """A request has been answered."""
        weight = _WEIGHT if self.generated_tokens else 1.0
        self.generated_tokens += weight * (generated_tokens - self.generated_tokens)

    def paused(self, seconds: float) -> None:
        """A program that has a place has asked again."""
        self._pause_s += _WEIGHT * (seconds - self._pause_s)

    def ended(self, served_s: float) -> None:
        """A program has ended that has taken so long."""
        served_s = max(_LEAST_S, served_s)
        last_s = self.program_s or served_s
        self.program_s = exp(log(last_s) + _PROGRAM_WEIGHT * log(served_s / last_s))
