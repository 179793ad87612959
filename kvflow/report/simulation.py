"""The report of a simulated comparison as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvflow.report.amounts import NOTHING
from kvflow.report.page import origin, readable, rendered
from kvflow.report.simulation_charts import sections
from kvflow.report.simulation_record import Simulation
from kvflow.report.simulation_rows import BRIEF, brief_cells, cautions, full_rows, headline


def write_simulation_html(result: Mapping[str, Any], path: str | Path) -> None:
    """Write a simulation document as one self-contained HTML file: no scripts, no network, light and dark.

    Args:
        result: the document of :func:`kvflow.sim.summary.document`; what it lacks is left out.
        path: the file to write; an existing one is replaced.

    Raises:
        MissingExtraError: jinja2 is not installed.
        ValueError: a field of the document has the wrong type.
        OSError: the file cannot be written.
    """
    record = Simulation.read(result)
    loads = {
        load: [(setup, list(zip(setup.policies, brief_cells(setup), strict=True))) for setup in setups]
        for load, setups in record.by_load().items()
    }
    html = rendered(
        "simulation.html.jinja",
        result=record,
        headline=headline(record),
        cautions=cautions(record),
        loads=loads,
        brief=BRIEF,
        sections=sections(record),
        details=[(setup, full_rows(setup)) for setup in record.setups],
        facts=origin(record) | _workload(record),
        settings=readable(record.settings) | {f"profile {name}": text for name, text in _profile(record).items()},
    )
    Path(path).write_text(html, encoding="utf-8", errors="replace")


def _workload(record: Simulation) -> dict[str, str]:
    traces = [
        f"{file.name} ({file.source}; {file.programs:,} programs, {file.calls:,} calls, tokens {file.token_counts})"
        for file in record.traces
    ]
    return {
        "traces": "; ".join(traces) or NOTHING,
        "contexts": f"{record.context_tokens:,.0f} tokens of a program's longest context on average; "
        f"longest request {record.longest_request_tokens:,} tokens",
    }


def _profile(record: Simulation) -> dict[str, str]:
    return readable({name: value for name, value in record.profile.items() if value not in ("", None)})
