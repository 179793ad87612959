"""What a hit saves, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

_LEAST_STEP_S = 1e-3
"""No decode step is taken to be shorter."""
_SAME = 0.02
"""A time that has changed by less than this share stays."""


@dataclass(slots=True, kw_only=True)
class ServingCosts:
    """Times of one model on one machine, as far as decisions depend on them.

    One object is shared by all who decide, so that what is learned while serving reaches all of them at once.

    Recomputing tokens a to b behind a cached prefix takes a linear part and the attention to everything before them;
    loading takes bytes over bandwidth wherever they stand (``shared`` derivation: FLOPs = 2N(b-a) + 2Ld(b²-a²)).

    Attributes:
        prefill_token_s: seconds to compute one token without attention.
        attention_token_s: seconds to attend to one earlier token.
        load_token_s: seconds to load one token from host to device.
        storage_token_s: seconds to fetch one token from storage to host.
        prefill_step_s: seconds of a prefill batch, its tokens apart.
        decode_step_s: seconds of a decode step without attention.
        decode_sequence_s: seconds each request adds to it.
        decode_context_token_s: seconds each token of context on the device adds to it.
    """

    prefill_token_s: float = 4.0e-5
    attention_token_s: float = 1.3e-9
    load_token_s: float = 2.6e-6
    storage_token_s: float = 4.4e-5
    prefill_step_s: float = 8.0e-3
    decode_step_s: float = 8.0e-3
    decode_sequence_s: float = 1.0e-5
    decode_context_token_s: float = 4.0e-8

    def learn(self, learned: Mapping[str, float]) -> bool:
        """Take over times that have been measured.

        Args:
            learned: seconds by attribute.

        Returns:
            Whether any has changed much.

        Raises:
            AttributeError: there is no such time; none is taken over.
        """
        news = {name: time_s for name, time_s in learned.items() if abs(time_s - getattr(self, name)) > _SAME * time_s}
        for name, time_s in news.items():
            setattr(self, name, time_s)
        return bool(news)

    def compute_s(self, start_tokens: float, end_tokens: float) -> float:
        """Seconds to compute tokens ``start`` to ``end`` of a prompt whose first ``start`` tokens are cached."""
        count = end_tokens - start_tokens
        return count * (self.prefill_token_s + self.attention_token_s * (start_tokens + end_tokens) / 2)

    def load_s(self, tokens: float) -> float:
        """Seconds to load tokens from host to device."""
        return tokens * self.load_token_s

    def load_steps(self, tokens: float) -> float:
        """Decode steps, the shortest there are, that are made while tokens are loaded."""
        return self.load_s(tokens) / max(self.decode_step_s, _LEAST_STEP_S)

    def of_storage(self) -> ServingCosts:
        """The same machine, with storage in the host's place."""
        return replace(self, load_token_s=self.storage_token_s)

    def decode_s(self, steps: float, sequences: float, context_tokens: float) -> float:
        """Seconds of decode steps of so many sequences, their contexts together."""
        return steps * (
            self.decode_step_s + self.decode_sequence_s * sequences + self.decode_context_token_s * context_tokens
        )

    def saved_token_s(self, position_tokens: int, *, backed_up: bool) -> float:
        """Seconds a hit saves for one token at a position, against what happens without it."""
        if backed_up:
            return self.load_token_s
        return self.prefill_token_s + self.attention_token_s * position_tokens
