"""What a step of a program is like on this server, learned from those that come."""

from __future__ import annotations

from kvflow.policy import Step

_WEIGHT = 0.02
"""Of the latest step in the averages."""


class TypicalStep:
    """Moving averages over steps: of prompts, what is new in them, answers, and pauses between two of a program."""

    def __init__(self) -> None:
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
