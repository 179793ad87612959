"""Continuum's workloads (arXiv 2511.02230, section 5): agents with tool calls that arrive one by one.

Jobs arrive as a Poisson process, at several rates; the answer is the time from a job's arrival to its end. Continuum
keeps a context for a TTL while its tool runs (`kvflow-ttl`); beside it SGLang without that, and kvflow's own order.

Usage: python bench/bench_continuum_paper.py SESSIONS… [--rates 20 40] [--profile gpu] [options of kvflow replay]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from replaying import Preset, parser, run  # noqa: E402

OPTIONS: dict[str, dict[str, str | int | float]] = {
    "cpu": {"programs": 24, "scale": 0.05, "time-scale": 0.05, "max-gap": 10, "rounds": 2},
    "gpu": {"programs": 64, "max-gap": 120, "rounds": 1, "page-tokens": 64},
}
ARMS = ("lru", "no-host", "kvflow-ttl", "kvflow", "kvflow-admission")


def main() -> None:
    """Read options and run, rate by rate."""
    made = parser(__doc__)
    made.add_argument("sessions", nargs="+", type=Path, help="files with recorded sessions")
    made.add_argument("--rates", nargs="+", type=float, help="jobs a minute; cpu: 15 and 30, gpu: 6 and 12")
    made.add_argument("--json", type=Path, help="the rate is put before its suffix if there are several")
    options, further = made.parse_known_args()
    rates = options.rates or ([15.0, 30.0] if options.profile == "cpu" else [6.0, 12.0])
    if len(rates) > 1:
        for rate in rates:
            command = [sys.executable, __file__, *map(str, options.sessions), "--rates", str(rate)]
            command += ["--profile", options.profile, *further]
            command += ["--arms", *options.arms] if options.arms else []
            command += ["--fast-link"] if options.fast_link else []
            if options.json:
                command += ["--json", str(options.json.with_stem(f"{options.json.stem}-{rate:g}"))]
            subprocess.run(command, check=True)
        return
    settings = OPTIONS[options.profile] | {"rate": rates[0], "folder": f".replay/rate-{rates[0]:g}"}
    if options.json:
        settings["json"] = str(options.json)
    run(Preset(traces=tuple(options.sessions), options=settings, arms=ARMS), options, further)


if __name__ == "__main__":
    main()
