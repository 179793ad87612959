"""Reading a file of any known format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from kvflow.errors import TraceError
from kvflow.trace.importers.base import Importer, Json
from kvflow.trace.importers.bfcl import BFCLImporter
from kvflow.trace.importers.chatdev import ChatDevImporter
from kvflow.trace.importers.dialogue import DialogueImporter
from kvflow.trace.importers.groupchat import GroupChatImporter
from kvflow.trace.importers.hashes import HashImporter
from kvflow.trace.importers.marble import MarbleImporter
from kvflow.trace.importers.metagpt import MetaGPTImporter
from kvflow.trace.importers.prompts import PromptImporter
from kvflow.trace.importers.recording import RecordingImporter
from kvflow.trace.importers.sessions import SessionImporter
from kvflow.trace.importers.weka import WekaImporter
from kvflow.trace.io import BadRow, OnBadRow, numbered_rows, open_text, read_header, read_trace, validation_problem
from kvflow.trace.schema import Event, TraceHeader

SAMPLE_ROWS = 32
"""Rows at the start of a file that say what it is."""

_IMPORTERS: tuple[type[Importer], ...] = (
    DialogueImporter,
    SessionImporter,
    PromptImporter,
    GroupChatImporter,
    MetaGPTImporter,
    ChatDevImporter,
    MarbleImporter,
    BFCLImporter,
    WekaImporter,
    HashImporter,
    RecordingImporter,
)
FORMATS: dict[str, type[Importer]] = {importer.format: importer for importer in _IMPORTERS}
"""Importers by the name of their format. Detection asks them in this order."""


def open_trace(path: str | Path, on_bad_row: OnBadRow) -> tuple[TraceHeader, Iterator[Event]]:
    """Open a trace of kvflow's own format, or of any other that is known.

    Args:
        path: the file, gzipped or not. Its content says what it is, not its name.
        on_bad_row: told of every row that is left out.

    Returns:
        The header, and the events, which are read as they are asked for.

    Raises:
        TraceError: the file cannot be read, or is of no known format.
    """
    path = Path(path)
    if any(row.get("event") == "trace" for row in _sample(path, rows=1)):
        return read_header(path), read_trace(path, on_bad_row)
    return import_trace(path, on_bad_row=on_bad_row)


def import_trace(
    path: str | Path, format: str | None = None, on_bad_row: OnBadRow = lambda bad: None
) -> tuple[TraceHeader, Iterator[Event]]:
    """Open a trace of another project's format.

    Args:
        path: the file, gzipped or not.
        format: one of ``FORMATS``; by default what the first rows look like.
        on_bad_row: told of every row that is left out; the rest is used.

    Returns:
        The header, and the events, row by row as they are asked for.

    Raises:
        TraceError: the file cannot be read, or is of no known format.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise TraceError(f"there is no format {format!r}; there are: {', '.join(FORMATS)}")
    sample = _sample(path)
    importer = FORMATS[format] if format else _detected(path, sample)
    made = importer(sample, path)
    return made.header(), _events(made, path, on_bad_row)


def _sample(path: Path, rows: int = SAMPLE_ROWS) -> list[Json]:
    sample: list[Json] = []
    try:
        with open_text(path) as file:
            for _, line in islice(numbered_rows(path, file), rows):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    sample.append(row)
    except TraceError:
        if not sample:
            raise
    return sample  # where the file breaks off is told when its events are read


def _detected(path: Path, sample: list[Json]) -> type[Importer]:
    for row in sample:
        for importer in FORMATS.values():
            if importer.fits(row):
                return importer
    if not sample:
        raise TraceError(f"{path} has no JSON objects in its first {SAMPLE_ROWS} lines")
    raise TraceError(f"{path} is of no known format ({', '.join(FORMATS)}); its rows have: {', '.join(sample[0])}")


def _events(importer: Importer, path: Path, on_bad_row: OnBadRow) -> Iterator[Event]:
    with open_text(path) as file:
        rows = numbered_rows(path, file)
        number = 0
        while True:
            try:
                number, line = next(rows)
                events = importer.events(line)
            except StopIteration:
                break
            except TraceError as error:  # the file breaks off; what came before is good
                on_bad_row(BadRow(str(path), number + 1, str(error)))
                break
            except ValidationError as error:
                on_bad_row(BadRow(str(path), number, validation_problem(error)))
            except ValueError as error:
                on_bad_row(BadRow(str(path), number, str(error)))
            except Exception as error:  # nothing that a foreign row holds may cost the rows after it
                on_bad_row(BadRow(str(path), number, f"{type(error).__name__}: {error}"))
            else:
                yield from events
    yield from importer.rest()
