"""Coding agents on SWE-bench: recorded sessions replayed in a closed loop, or the agent itself against the server.

Replay: all sessions start at once; contexts, answers, tools and pauses are scaled down by one factor on the CPU engine,
and are what they were on a GPU. The device holds a third of the live contexts, the host tier two thirds.

Live: mini-swe-agent works on instances of SWE-bench, with its own prompts and the model that is served; needs the
package, the data set, a container engine, and a model that can do it, served with its --tool-call-parser. Run it once
for each server that is to be compared. Ends with 1 if an agent was ended by an error.

Usage: python bench/bench_swebench.py SESSIONS… [--profile gpu] [--arms …] [options of kvflow replay]
       python bench/bench_swebench.py --live URL --model NAME [--instances 0:8] [--workers 8] [--json FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from live_swebench import add_options, live  # noqa: E402
from replaying import Preset, parser, read, run  # noqa: E402

OPTIONS: dict[str, dict[str, str | int | float]] = {
    "cpu": {"programs": 24, "scale": 0.05, "time-scale": 0.05, "max-gap": 10, "rounds": 2},
    # As many contexts of 40,000 tokens as 33 % and 67 % of fit an H200 and 100 GB of host memory: docs/gpu.md.
    "gpu": {"programs": 24, "max-gap": 120, "rounds": 1, "page-tokens": 64},
}


def main() -> None:
    """Read options and run."""
    made = parser(__doc__)
    made.add_argument("sessions", nargs="*", type=Path, help="files with recorded sessions")
    made.add_argument("--json", type=Path, help="write the result here")
    add_options(made)
    options, further = read(made, own=("--json",))
    if options.live and (options.sessions or further):
        made.error("--live replays nothing: give neither files nor options of kvflow replay")
    if options.live:
        sys.exit(live(options))
    if not options.sessions:
        made.error("give files with recorded sessions, before --arms, or --live URL")
    settings = OPTIONS[options.profile] | ({"json": str(options.json)} if options.json else {})
    sys.exit(run(Preset(traces=tuple(options.sessions), options=settings), options, further))


if __name__ == "__main__":
    main()
