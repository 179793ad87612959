"""Multi-agent programs: logs of agents that hand work to each other, replayed with their step graphs.

Every agent's context is one claim of its workflow; the graph is learned from traffic, as for a program that declares
none. So many programs run at once, and another begins when one ends, since such logs differ much in length. Contexts
and answers are scaled down on the CPU engine. Tools without a recorded time take half a second.

Usage: python bench/bench_multi_agent.py LOGS… [--profile gpu] [--arms …] [options of kvflow replay]
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from replaying import Preset, parser, read, run  # noqa: E402

OPTIONS: dict[str, dict[str, str | int | float]] = {
    "cpu": {
        "programs": 40,
        "concurrency": 10,
        "scale": 0.1,
        "time-scale": 0.1,
        "max-gap": 5,
        "tool-s": 0.5,
        "rounds": 2,
    },
    "gpu": {"programs": 128, "concurrency": 48, "max-gap": 60, "tool-s": 0.5, "rounds": 1, "page-tokens": 64},
}


def main() -> None:
    """Read options and run."""
    made = parser(__doc__)
    made.add_argument("logs", nargs="+", type=Path, help="files with recorded programs")
    options, further = read(made)
    sys.exit(run(Preset(traces=tuple(options.logs), options=OPTIONS[options.profile]), options, further))


if __name__ == "__main__":
    main()
