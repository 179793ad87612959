"""Reads the pages and tables that reports write."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser

from rich.console import Console
from rich.table import Table

VOID = {"meta", "link", "img", "br", "hr", "input"}
HOSTILE = "<script>alert(\"x\")</script>&amp;<img src=x onerror='alert(1)'>]]>\x00"


class Page(HTMLParser):
    """Reads a page and insists on every tag being closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.labels: list[list[str]] = []
        """The text elements of every chart, tooltips left out."""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "svg":
            self.labels.append([])
        if tag == "text":
            self.labels[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and self.open[-1] == "text":
            self.labels[-1][-1] += data

    def values(self, name: str) -> list[str]:
        return [value or "" for _, key, value in self.attributes if key == name]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def printed(tables: Iterable[Table], width: int = 160) -> str:
    """What tables look like in a terminal."""
    file = io.StringIO()
    console = Console(file=file, width=width)
    for table in tables:
        console.print(table)
    return file.getvalue().replace("\xa0", " ")
