"""Reading and writing traces."""

from __future__ import annotations

import gzip
import zlib
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
_GZIP_MAGIC = b"\x1f\x8b"


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
    """Read a trace event by event, as far as the file is whole.

    Args:
        path: the file, gzipped or not.
        on_bad_row: told of every row that is left out, and where the file breaks off.

    Raises:
        TraceError: the file does not exist, breaks off before its first event, or is no trace of a version kvflow
            knows.
    """
    with open_text(path) as file:
        rows = numbered_rows(path, file)
        line, used = 0, False
        while True:
            try:
                line, row = next(rows)
                event = _LINE.validate_json(row)
            except StopIteration:
                break
            except TraceError as error:
                if not used:
                    raise
                on_bad_row(BadRow(str(path), line + 1, str(error)))
                break
            except ValidationError as error:
                if line == 1:
                    raise TraceError(f"{path} is not a kvflow trace: {validation_problem(error)}") from None
                on_bad_row(BadRow(str(path), line, validation_problem(error)))
                continue
            if isinstance(event, TraceHeader):
                continue
            if line == 1:
                raise TraceError(f"{path} is not a kvflow trace: its first line is not a trace header")
            used = True
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
                raise TraceError(f"{path} is not a kvflow trace: {validation_problem(error)}") from None
    raise TraceError(f"{path} is empty")


def write_trace(path: Path, header: TraceHeader, events: Iterable[Event]) -> int:
    """Write a trace; returns the number of events."""
    events_written = 0
    with (
        cast(IO[str], gzip.open(path, "wt", encoding="utf-8"))
        if path.suffix == ".gz"
        else path.open("w", encoding="utf-8") as file
    ):
        file.write(header.model_dump_json() + "\n")
        for event in events:
            file.write(event.model_dump_json(exclude_none=True, exclude_defaults=False) + "\n")
            events_written += 1
    return events_written


def open_text(path: Path) -> IO[str]:
    """Open a text file for reading, gzipped or not: its first bytes say which, not its name.

    Raises:
        TraceError: it does not exist or cannot be opened.
    """
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == _GZIP_MAGIC
        if gzipped:
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
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} cannot be read beyond line {line}: {error}") from None


def validation_problem(error: ValidationError) -> str:
    """Say in one line what pydantic found wrong first, and where."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
