"""The report as one HTML file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvflow.errors import MissingExtraError
from kvflow.report import graph_chart, latency, residency, timeline
from kvflow.report.amounts import NOTHING
from kvflow.report.result import Document, Result
from kvflow.report.verdict import cautions, headline, rows, summary


def write_html(result: Mapping[str, Any], path: str | Path) -> None:
    """Write a result document as one self-contained HTML file: no scripts, no network, light and dark.

    Args:
        result: the document; what it lacks is reported as "no data".
        path: the file to write; an existing one is replaced.

    Raises:
        MissingExtraError: jinja2 is not installed.
        ValueError: a field of the document has the wrong type.
        OSError: the file cannot be written.
    """
    html = _render(Result.read(result))
    Path(path).write_text(html, encoding="utf-8", errors="replace")


def _render(result: Result) -> str:
    facts = origin(result) | {
        "arms": "; ".join(f"{arm.name} (policy {arm.policy or NOTHING})" for arm in result.arms) or NOTHING,
        "seams": _answer(result.seams_hold, yes="all hold", no="at least one does not hold"),
        "output tokens": _answer(result.identical_tokens, yes="identical in all arms", no="differ between arms"),
    }
    return rendered(
        "report.html.jinja",
        result=result,
        headline=headline(result),
        summary=summary(result),
        cautions=cautions(result),
        rows=rows(result),
        sections=[part.section(result) for part in (graph_chart, timeline, residency, latency)],
        facts=facts,
        settings=readable(result.settings),
    )


def rendered(template: str, **values: Any) -> str:
    """Fill a template of this package; everything is escaped.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise MissingExtraError("report", "the HTML report") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvflow.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def origin(document: Document) -> dict[str, str]:
    """Return what somebody needs to run this again, by name."""
    machine, git = document.machine, document.git
    hardware = [machine.get("cpu"), _counted(machine.get("cores"), "cores"), _counted(machine.get("memory_gib"), "GiB")]
    gpus = machine.get("gpus")
    hardware += gpus if isinstance(gpus, list) else []
    return {
        "command": document.command or NOTHING,
        "created": document.created or NOTHING,
        "machine": ", ".join(str(part) for part in hardware if part) or NOTHING,
        "versions": ", ".join(f"{name} {version}" for name, version in document.versions.items()) or NOTHING,
        "git": str(git.get("commit") or NOTHING) + (" with uncommitted changes" if git.get("dirty") else ""),
    }


def readable(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as texts."""
    return {name: _plain(value) for name, value in settings.items()}


def _counted(number: object, unit: str) -> str | None:
    return None if number is None else f"{number} {unit}"


def _answer(fact: bool | None, *, yes: str, no: str) -> str:
    return "not recorded" if fact is None else yes if fact else no


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
    return json.dumps(value, ensure_ascii=False)
