"""Reading and writing traces."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, cast

from pydantic import Field, TypeAdapter, ValidationError

from kvflow.errors import TraceError
from kvflow.trace.schema import Event, TraceHeader

_LINE: TypeAdapter[Event | TraceHeader] = TypeAdapter(
    Annotated[Event | TraceHeader, Field(discriminator="event")]  # type: ignore[valid-type]
)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be used. The rest of the file is."""

    path: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


OnBadRow = Callable[[BadRow], None]


def read_trace(path: Path, on_bad_row: OnBadRow) -> Iterator[Event]:
    """Read a trace event by event.

    Args:
        path: the file; gzipped if its name ends in ``.gz``.
        on_bad_row: told of every row that is left out.

    Raises:
        TraceError: the file does not exist, cannot be read, or is no trace of a version kvflow knows.
    """
    with open_text(path) as file:
        for line, row in numbered_rows(path, file):
            try:
                event = _LINE.validate_json(row)
            except ValidationError as error:
                if line == 1:
                    raise TraceError(f"{path} is not a kvflow trace: {_problem(error)}") from None
                on_bad_row(BadRow(str(path), line, _problem(error)))
                continue
            if isinstance(event, TraceHeader):
                continue
            if line == 1:
                raise TraceError(f"{path} is not a kvflow trace: its first line is not a trace header")
            yield event


def read_header(path: Path) -> TraceHeader:
    """Read only the header.

    Raises:
        TraceError: as in :func:`read_trace`.
    """
    with open_text(path) as file:
        for _, row in numbered_rows(path, file):
            try:
                return TraceHeader.model_validate_json(row)
            except ValidationError as error:
                raise TraceError(f"{path} is not a kvflow trace: {_problem(error)}") from None
    raise TraceError(f"{path} is empty")


def write_trace(path: Path, header: TraceHeader, events: Iterable[Event]) -> int:
    """Write a trace; returns the number of events."""
    count = 0
    with (
        cast(IO[str], gzip.open(path, "wt", encoding="utf-8"))
        if path.suffix == ".gz"
        else path.open("w", encoding="utf-8") as file
    ):
        file.write(header.model_dump_json() + "\n")
        for count, event in enumerate(events, start=1):
            file.write(event.model_dump_json(exclude_none=True, exclude_defaults=False) + "\n")
    return count


def open_text(path: Path) -> IO[str]:
    """Open a text file for reading, gzipped or not.

    Raises:
        TraceError: it does not exist or cannot be opened.
    """
    try:
        if path.suffix == ".gz":
            return cast(IO[str], gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape"))
        return path.open(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None


def numbered_rows(path: Path, file: IO[str]) -> Iterator[tuple[int, str]]:
    """Non-empty lines with their numbers, from 1.

    Raises:
        TraceError: the file breaks off or is not what its name says.
    """
    line = 0
    try:
        for line, row in enumerate(file, start=1):
            if row.strip():
                yield line, row
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise TraceError(f"{path} cannot be read beyond line {line}: {error}") from None


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
