"""Link statistics for other processes: a file the scheduler process rewrites while it lives.

A benchmark measures stock SGLang on the CPU engine too, where none of kvflow's routes exist to ask.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from kvflow.patches.cpu.link import Direction, DirectionStatistics, LinkStatistics

FILE_VARIABLE = "KVFLOW_CPU_LINK_STATISTICS"
PERIOD_S = 0.1
SETTLED_S = 3 * PERIOD_S
"""After so long without news the file has all there was."""


def start(statistics: Callable[[], LinkStatistics]) -> None:
    """Publish to the file named by ``KVFLOW_CPU_LINK_STATISTICS``, if any, every 0.1 s while there is news."""
    name = os.environ.get(FILE_VARIABLE)
    if name:
        threading.Thread(target=_publish, args=(Path(name), statistics), name="kvflow-link", daemon=True).start()


def read_statistics(path: Path) -> dict[Direction, DirectionStatistics]:
    """Read what a scheduler process published; zeros before it has. Up to 0.1 s old."""
    if not path.exists():
        nothing = DirectionStatistics(copied_bytes=0, copies=0, busy_s=0.0, stalled_s=0.0)
        return dict.fromkeys(Direction, nothing)
    data = json.loads(path.read_text())
    return {direction: DirectionStatistics(**data[direction]) for direction in Direction}


def _publish(path: Path, statistics: Callable[[], LinkStatistics]) -> None:
    published = None
    while True:
        current = statistics()
        if current != published:
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(asdict(current)))
            beside.replace(path)
            published = current
        time.sleep(PERIOD_S)
