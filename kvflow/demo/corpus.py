"""Real text for the program: manuals for its agents, documents to work on."""

from __future__ import annotations

import gzip
import importlib
import json
import pydoc
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from kvflow.errors import ConfigError

_SOURCES = ("networkx.algorithms", "httpx", "rich")
_MIN_FILE_CHARS = 2_000
_TEXTS_PER_DOCUMENT = 40


def manual(module: str, chars: int) -> str:
    """Reference documentation of a standard-library module, in ASCII so that a byte is a token."""
    text = pydoc.render_doc(importlib.import_module(module), renderer=pydoc.plaintext)  # pyright: ignore
    return ascii_only(text)[:chars]


def source_files(count: int, chars: int) -> list[str]:
    """Excerpts of Python source files of installed packages, always the same ones; fewer files repeat."""
    found: list[str] = []
    for package in _SOURCES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        for path in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
            text = ascii_only(path.read_text(encoding="utf-8", errors="ignore"))
            if len(text) >= _MIN_FILE_CHARS:
                found.append(f"# {path.name}\n{text[:chars]}")
    step = max(1, len(found) // count)
    return [found[index * step % len(found)] for index in range(count)]


def trace_documents(path: Path, count: int, chars: int) -> list[str]:
    """One document per session of a trace: what its messages say, from the end, where sessions differ most.

    Args:
        path: JSON lines, gzipped or not, one session a line with ``messages`` holding ``content``.
        count: documents wanted; fewer sessions repeat.
        chars: length of each in characters.

    Raises:
        ConfigError: the file is not there, or holds no such session.
    """
    try:
        documents = list(_sessions(path, count, chars))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--trace {path}: {type(error).__name__}: {error}") from None
    if not documents:
        raise ConfigError(f"--trace {path} holds no session with messages")
    return [documents[index % len(documents)] for index in range(count)]


def ascii_only(text: str) -> str:
    """Drop what is not printable ASCII or a line break."""
    return "".join(char for char in text if char == "\n" or " " <= char <= "~")


def _sessions(path: Path, count: int, chars: int) -> Iterator[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
            texts = [message.get("content") or "" for message in row.get("messages", ())]
            text = ascii_only("\n".join(texts[-_TEXTS_PER_DOCUMENT:]))
            if len(text) >= chars:
                yield f"# session {row['session_id']}\n{text[-chars:]}"
                count -= 1
                if count == 0:
                    return
