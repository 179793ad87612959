"""Programs with contexts, answers and times of a fraction of their size."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from zlib import crc32

from kvflow.trace import LLMCall, Piece, Program, ThreadEvent, ToolEnd

FIRST_TOKENS = 2
"""What is left at least of what a prompt begins with: of 240 token ids, single ones are too often equal by chance."""


def scaled(program: Program, tokens: float, time: float) -> Program:
    """Scale a program; what is shared or begins differently stays so, and no prompt or answer gets empty.

    Args:
        tokens: factor of prompts and answers.
        time: factor of tools and pauses.
    """
    if tokens == time == 1:
        return program
    return replace(program, threads=_Scaler(program, tokens, time).threads())


class _Scaler:
    """Scales a program call by call, because a prompt keeps part of an earlier one's context.

    Contents are scaled by position, so that two slices of one content still meet where they met. Positions are rounded
    up or down by the content's name, as often as it takes for many short pieces to be a fraction of what they were.
    """

    def __init__(self, program: Program, tokens: float, time: float) -> None:
        self._program = program
        self._factor = Fraction(str(tokens))  # block hashes make offsets beyond what a float tells apart
        self._time = time
        self._calls = {call.call: call for call in program.calls}
        self._scaled: dict[str, LLMCall] = {}
        self._tokens: dict[str, tuple[int, int]] = {}

    def threads(self) -> dict[str, list[ThreadEvent]]:
        """All events of the program."""
        return {name: [self._event(event) for event in events] for name, events in self._program.threads.items()}

    def _event(self, event: ThreadEvent) -> ThreadEvent:
        if isinstance(event, ToolEnd) and event.seconds is not None:
            return event.model_copy(update={"seconds": event.seconds * self._time})
        if not isinstance(event, LLMCall):
            return event
        before: list[LLMCall] = []  # what it continues, in whichever thread that is
        name: str | None = event.call
        while name is not None and name not in self._scaled:
            before.append(self._calls[name])
            name = self._calls[name].prompt.base
        for call in reversed(before):
            self._scaled[call.call] = self._call(call)
        return self._scaled[event.call]

    def _call(self, call: LLMCall) -> LLMCall:
        prompt = call.prompt
        kept = 0
        if prompt.base is not None:
            before, after = self._tokens[prompt.base]
            kept = after if prompt.keep_tokens >= before else min(after, self._kept(prompt.base, prompt.keep_tokens))
        pieces: list[Piece] = []
        for piece in prompt.add:
            small_piece = self._piece(piece, piece.tokens, first=not kept and not pieces)
            if small_piece.tokens:
                pieces.append(small_piece)
        output_tokens = max(1, self._position(call.output, call.output_tokens))
        tokens = kept + sum(piece.tokens for piece in pieces)
        self._tokens[call.call] = (prompt.tokens + call.output_tokens, tokens + output_tokens)
        small = self._scaled[call.call] = call.model_copy(
            update={
                "prompt": prompt.model_copy(update={"keep_tokens": kept, "add": tuple(pieces)}),
                "output_tokens": output_tokens,
                "delay_s": None if call.delay_s is None else call.delay_s * self._time,
            }
        )
        if call.fixed_tokens is None:
            return small
        return small.model_copy(update={"fixed_tokens": min(tokens, self._kept(call.call, call.fixed_tokens))})

    def _kept(self, base: str, tokens: int) -> int:
        """What has become of the first tokens of a call's context, which was scaled piece by piece."""
        call = self._calls[base]
        while call.prompt.base is not None and tokens <= call.prompt.keep_tokens:
            call = self._calls[call.prompt.base]
        small = self._scaled[call.call]
        kept, left = small.prompt.keep_tokens, tokens - call.prompt.keep_tokens
        for piece in call.prompt.add:
            taken = min(piece.tokens, left)
            kept += self._piece(piece, taken, first=not kept).tokens
            left -= taken
        return kept + min(small.output_tokens, self._position(call.output, left))

    def _piece(self, piece: Piece, tokens: int, *, first: bool) -> Piece:
        """What has become of the first tokens of a piece, perhaps nothing.

        Of the first piece of a prompt something stays: prompts that began differently would share what follows.
        """
        start, end = (self._position(piece.content, at) for at in (piece.offset, piece.offset + tokens))
        least = min(tokens, FIRST_TOKENS) if first else 0
        if end - start >= least:
            return Piece(piece.content, end - start, start)
        # Another slice of the content may have become the same few tokens.
        return Piece(f"{piece.content}@{piece.offset}" if piece.offset else piece.content, least)

    def _position(self, content: str, tokens: int) -> int:
        numerator, denominator = self._factor.numerator, self._factor.denominator
        return (tokens * numerator * 2**32 + _phase(content) * denominator) // (denominator * 2**32)


def _phase(content: str) -> int:
    """From what fraction of a token on positions in a content are rounded up, in 2^-32; as good as drawn at random."""
    return crc32(content.encode())
