"""What an importer is: rows of somebody else's format in, events out."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import xxhash
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kvflow.trace.schema import Event, TraceHeader

CHARS_PER_TOKEN = 3.5
"""Used where a source has texts but no token counts. Four, the usual rule, is too high for agent traffic."""
SLICE_TOKENS = 80
"""Prompts without messages are cut into slices of this length, so that those that begin alike show it ..."""
SLICE_CHARS = round(SLICE_TOKENS * CHARS_PER_TOKEN)
"""... and their texts into slices of this one."""

Json = Mapping[str, Any]


class Importer(ABC):
    """Turns the rows of one file into events; a fresh one for every file, because rows may refer to earlier ones.

    Attributes:
        format: what ``kvflow trace convert --format`` calls it.
        notes: what a reader of the converted trace should know.
    """

    format: ClassVar[str]
    token_counts: ClassVar[Literal["counted", "estimated", "mixed"]] = "estimated"
    notes: str = ""

    def __init__(self, sample: Sequence[Json], path: Path) -> None:
        self.names = Names()
        source = next((str(row["source"]) for row in sample if row.get("source")), self.format)
        self._source = source.encode("utf-8", "replace").decode()

    @classmethod
    @abstractmethod
    def fits(cls, row: Json) -> bool:
        """Tell from its keys whether a row is of this format."""

    @abstractmethod
    def events(self, row: str) -> Sequence[Event]:
        """Events of one row.

        Raises:
            ValueError: the row cannot be used; says why.
        """

    def rest(self) -> Iterable[Event]:
        """Events that are due after the last row."""
        return ()

    def header(self) -> TraceHeader:
        """Header of the converted trace."""
        return TraceHeader(source=self._source, token_counts=self.token_counts, notes=self.notes)


class Names:
    """Gives out names that are unique in a file, or in a workflow."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        """The name itself the first time, with a number later."""
        count = self._given.get(wanted, 0) + 1
        self._given[wanted] = count
        if count == 1:
            return wanted
        return self.unique(f"{wanted}#{count}")


def estimated_tokens(text: str) -> int:
    """Tokens of a text of this length, at least 1."""
    return max(1, round(len(text) / CHARS_PER_TOKEN))


def digest(text: str) -> str:
    """Short name for a text; equal texts have equal ones."""
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def clipped(seconds: float | None) -> float | None:
    """Seconds to the microsecond; 0 where a recorded clock stepped back."""
    return None if seconds is None else max(0.0, round(seconds, 6))


def since(start_s: float | None, end_s: float | None) -> float | None:
    """Seconds between two times, at least 0; None if one of them is not known."""
    return None if start_s is None or end_s is None else clipped(end_s - start_s)


def _items(value: Any) -> Any:
    """Let null be no items."""
    return () if value is None else value


def _mapping(value: Any) -> Any:
    """Let null be an empty mapping."""
    return {} if value is None else value


def _text(value: Any) -> Any:
    """Let nothing be the empty text, and structured contents their JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


class Row(BaseModel):
    """Base of the models of foreign rows: what kvflow does not use is ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


NoNull = BeforeValidator(_items)
"""For lists and tuples that may be null."""
NoNullMapping = BeforeValidator(_mapping)
"""For mappings that may be null."""
Text = Annotated[str, BeforeValidator(_text)]
Tokens = Annotated[int, Field(ge=0, le=2**53)]
Clock = Annotated[float, Field(ge=0)]
