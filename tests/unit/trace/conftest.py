"""Traces written into a temporary file and read back."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvflow.trace import (
    BadEvent,
    BadRow,
    Event,
    LLMCall,
    Program,
    ToolEnd,
    TraceHeader,
    WorkflowStart,
    open_trace,
    programs,
)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What became of a file."""

    header: TraceHeader
    events: list[Event]
    bad: list[BadRow]

    @property
    def programs(self) -> list[Program]:
        """Its workflows; that every event fits the ones before it is part of every test."""
        misfits: list[BadEvent] = []
        found = list(programs(self.events, misfits))
        assert misfits == []
        return found

    @property
    def calls(self) -> list[LLMCall]:
        assert self.programs
        return [event for event in self.events if isinstance(event, LLMCall)]

    @property
    def starts(self) -> list[WorkflowStart]:
        return [event for event in self.events if isinstance(event, WorkflowStart)]

    @property
    def tool_ends(self) -> list[ToolEnd]:
        return [event for event in self.events if isinstance(event, ToolEnd)]

    @property
    def shape(self) -> list[str]:
        """Kinds of the events in between start and end, by thread if there are several."""
        kinds = []
        for event in self.events:
            thread = getattr(event, "thread", None)
            if thread is not None:
                kinds.append(event.event if thread == "main" else f"{event.event}@{thread}")
        return kinds

    def whole(self, call: LLMCall) -> list[tuple[str, int, int]]:
        """Prompt of a call as slices (content, offset, tokens), with what it keeps of earlier calls spelled out."""
        kept: list[tuple[str, int, int]] = []
        if call.prompt.base is not None:
            base = next(each for each in self.calls if (each.workflow, each.call) == (call.workflow, call.prompt.base))
            left = call.prompt.keep_tokens
            for content, offset, tokens in [*self.whole(base), (base.output, 0, base.output_tokens)]:
                if left > 0 and tokens:
                    kept.append((content, offset, min(tokens, left)))
                    left -= tokens
        return kept + [(piece.content, piece.offset, piece.tokens) for piece in call.prompt.add]


ImportRows = Callable[..., Imported]


@pytest.fixture
def imported(tmp_path: Path) -> ImportRows:
    """Write rows (or raw lines) into a file whose name says nothing, and open it."""

    def load(*rows: dict[str, Any] | str, name: str = "renamed.bin", zipped: bool = False) -> Imported:
        path = tmp_path / name
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
        bad: list[BadRow] = []
        header, events = open_trace(path, bad.append)
        return Imported(header=header, events=list(events), bad=bad)

    return load
