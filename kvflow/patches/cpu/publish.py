"""Link statistics for other processes: files that scheduler processes rewrite while they live, each its own.

A benchmark measures stock SGLang on the CPU engine too, where none of kvflow's routes exist to ask.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

from kvflow.patches.cpu.link import Direction, DirectionStatistics, LinkStatistics

FILE_VARIABLE = "KVFLOW_CPU_LINK_STATISTICS"
PERIOD_S = 0.1
SETTLED_S = 3 * PERIOD_S
"""After so long without news the file has all there was."""


def start(statistics: Callable[[], LinkStatistics]) -> None:
    """Publish every 0.1 s while there is news, if ``KVFLOW_CPU_LINK_STATISTICS`` names a file.

    What is written is that name with the process id behind it: a server may have several schedulers.
    """
    name = os.environ.get(FILE_VARIABLE)
    if name:
        path = Path(f"{name}.{os.getpid()}")
        threading.Thread(target=_publish, args=(path, statistics), name="kvflow-link", daemon=True).start()


def forget_statistics(path: Path) -> None:
    """Remove what schedulers of earlier servers have published under a name."""
    for each in _published(path):
        each.unlink(missing_ok=True)


def read_statistics(path: Path) -> dict[Direction, DirectionStatistics]:
    """Read what the scheduler processes of a server have published, summed up; zeros before. Up to 0.1 s old."""
    found = [json.loads(each.read_text()) for each in _published(path)]
    return {
        direction: DirectionStatistics(
            **{each.name: sum(data[direction][each.name] for data in found) for each in fields(DirectionStatistics)}
        )
        for direction in Direction
    }


def _published(path: Path) -> list[Path]:
    return [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdecimal()]


def _publish(path: Path, statistics: Callable[[], LinkStatistics]) -> None:
    published = None
    while True:
        current = statistics()
        if current != published:
            beside = path.with_name(f"{path.name}.new")
            beside.write_text(json.dumps(asdict(current)))
            beside.replace(path)
            published = current
        time.sleep(PERIOD_S)
