"""Continuum's workloads (arXiv 2511.02230, section 5): agents with tool calls that arrive one by one.

Jobs arrive as a Poisson process, at several rates; the answer is the time from a job's arrival to its end. Continuum
keeps a context for a TTL while its tool runs (`kvflow-ttl`); beside it SGLang without that, and kvflow's own order.

Usage: python bench/bench_continuum_paper.py SESSIONS… [--rates 20 40] [--profile gpu] [options of kvflow replay]
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from replaying import Further, Preset, parser, read, run  # noqa: E402

OPTIONS: dict[str, dict[str, str | int | float]] = {
    "cpu": {"programs": 24, "scale": 0.05, "time-scale": 0.05, "max-gap": 10, "rounds": 2},
    # As many contexts of 40,000 tokens as 33 % and 67 % of fit an H200 and 100 GB of host memory: docs/gpu.md.
    "gpu": {"programs": 24, "max-gap": 120, "rounds": 1, "page-tokens": 64},
}
ARMS = ("lru", "no-host", "kvflow-ttl", "kvflow-fcfs", "kvflow")


def preset(options: Namespace, rate: float, *, alone: bool) -> Preset:
    """What one rate plays, and where its rounds and reports are kept."""
    settings = OPTIONS[options.profile] | {"rate": rate, "folder": str(options.folder / f"rate-{rate:g}")}
    for name in ("json", "html"):
        path = getattr(options, name)
        if path:
            settings[name] = str(path if alone else path.with_stem(f"{path.stem}-{rate:g}"))
    return Preset(traces=tuple(options.sessions), options=settings, arms=ARMS)


def read_command() -> tuple[Namespace, Further]:
    """Read options, and choose rates."""
    made = parser(__doc__)
    made.add_argument("sessions", nargs="+", type=Path, help="files with recorded sessions")
    made.add_argument("--rates", "--rate", nargs="+", type=float, help="jobs a minute; cpu: 15 and 30, gpu: 6 and 12")
    made.add_argument("--json", type=Path, help="the rate is put before its suffix if there are several")
    made.add_argument("--html", type=Path, help="likewise")
    made.add_argument("--folder", type=Path, default=Path(".replay"), help="each rate has one of its own below it")
    options, further = read(made, own=("--rate", "--json", "--html", "--folder"))
    options.rates = options.rates or ([15.0, 30.0] if options.profile == "cpu" else [6.0, 12.0])
    return options, further


def main() -> None:
    """Run rate by rate, until one fails."""
    options, further = read_command()
    alone = len(options.rates) == 1
    statuses = (run(preset(options, rate, alone=alone), options, further) for rate in options.rates)
    sys.exit(next(filter(None, statuses), 0))


if __name__ == "__main__":
    main()
