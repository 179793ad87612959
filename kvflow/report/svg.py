"""Just enough SVG: escaped elements, charts with a title and a description, and the width of a text."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from html import escape

_CONTROL = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127], "\N{REPLACEMENT CHARACTER}")
_EM = 0.56
"""Mean width of a character in ems; on the safe side for the system fonts in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element. Attributes and text are escaped when it is written, so any string is safe in it."""

    tag: str
    attributes: dict[str, str | float | None]
    children: tuple[Element | str, ...]

    def __html__(self) -> str:
        """Write the element; Jinja takes this for markup that needs no further escaping."""
        parts: list[str] = []
        self._write(parts)
        return "".join(parts)

    def _write(self, parts: list[str]) -> None:
        attributes = (f' {key}="{_value(value)}"' for key, value in self.attributes.items() if value is not None)
        parts.append(f"<{self.tag}{''.join(attributes)}>")
        for child in self.children:
            if isinstance(child, str):
                parts.append(_clean(child))
            else:
                child._write(parts)
        parts.append(f"</{self.tag}>")


def tag(name: str, *children: Element | str, **attributes: str | float | None) -> Element:
    """Make an element. In attribute names ``_`` stands for ``-``, a trailing one is dropped; None leaves one out."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    return Element(tag=name, attributes=named, children=children)


def tooltip(text: str) -> Element:
    """Make the child that shows a text while the pointer is over its parent."""
    return tag("title", text)


def chart(
    *body: Element,
    name: str,
    title: str,
    description: str,
    width: float,
    height: float,
    class_: str | None = None,
    style: str | None = None,
) -> Element:
    """Make a drawing that screen readers announce by title and description. ``name`` is unique within the page."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *body,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        class_=class_,
        style=style,
    )


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text at a font size, both in user units."""
    return sum(1.0 if unicodedata.east_asian_width(c) in "WF" else _EM for c in text) * size


def shortened(text: str, size: float, width: float) -> str:
    """Return the text, cut with an ellipsis if it would be wider than ``width``."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _clean(text: str) -> str:
    return escape(text.translate(_CONTROL))


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return _clean(value)
    return f"{value:.1f}".removesuffix(".0")
