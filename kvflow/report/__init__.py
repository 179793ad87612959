"""What a comparison measured, for people: a table for the terminal and a report in one HTML file.

Reads the JSON document a demo, simulation or benchmark writes, and nothing else. Stands on ``kvflow.graph`` (to draw
the agent step graph) and ``kvflow.errors``; used by ``cli``. Knows nothing of engines, policies or how the numbers came
about, and judges them by one rule only: what differs by more than 1 % is better or worse, and is shown as plainly
either way.
"""

from kvflow.report.page import write_html
from kvflow.report.replay import replay_tables, write_replay_html
from kvflow.report.simulation import write_simulation_html
from kvflow.report.simulation_table import simulation_tables
from kvflow.report.terminal import table

__all__ = [
    "replay_tables",
    "simulation_tables",
    "table",
    "write_html",
    "write_replay_html",
    "write_simulation_html",
]
