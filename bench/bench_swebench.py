"""Coding agents on SWE-bench: recorded sessions replayed in a closed loop, or the agent itself against the server.

Replay: all sessions start at once; contexts, answers, tools and pauses are scaled down by one factor on the CPU engine,
and are what they were on a GPU. The device holds a third of the live contexts, the host tier two thirds.

Live: mini-swe-agent works on instances of SWE-bench, with its own prompts and the model that is served; needs the
package, the data set, a container engine, and a model that can do it.

Usage: python bench/bench_swebench.py SESSIONS… [--profile gpu] [--arms …] [options of kvflow replay]
       python bench/bench_swebench.py --live URL --model NAME [--instances 0:8] [--workers 8]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from replaying import Preset, parser, read, run  # noqa: E402

OPTIONS: dict[str, dict[str, str | int | float]] = {
    "cpu": {"programs": 24, "scale": 0.05, "time-scale": 0.05, "max-gap": 10, "rounds": 2},
    "gpu": {"programs": 64, "max-gap": 120, "rounds": 1, "page-tokens": 64},
}


def live(options: Namespace) -> None:
    """Run mini-swe-agent on instances, and say how long it took."""
    missing = [] if find_spec("minisweagent") else ["the package mini-swe-agent (pip install mini-swe-agent)"]
    if not any(map(shutil.which, ("docker", "podman", "singularity", "apptainer"))):
        missing.append("a container engine (docker, podman or singularity)")
    if missing:
        sys.exit(f"--live needs {' and '.join(missing)}; recorded sessions can be replayed without")
    command = [sys.executable, "-m", "minisweagent.run.mini_extra", "swebench", "--subset", "verified"]
    command += ["--split", "test", "--slice", options.instances, "--workers", str(options.workers)]
    command += ["--model", f"openai/{options.model}", "--output", "swebench-live"]
    environment = {"OPENAI_API_BASE": f"{options.live.rstrip('/')}/v1", "OPENAI_API_KEY": "none"}
    began_s = time.perf_counter()
    status = subprocess.run(command, env=os.environ | environment, check=False).returncode
    print(f"instances {options.instances}: {time.perf_counter() - began_s:.1f} s, exit status {status}")
    sys.exit(status)


def main() -> None:
    """Read options and run."""
    made = parser(__doc__)
    made.add_argument("sessions", nargs="*", type=Path, help="files with recorded sessions")
    made.add_argument("--live", metavar="URL", help="run mini-swe-agent itself against this server")
    made.add_argument("--model", default="default", help="live: name of the served model")
    made.add_argument("--instances", default="0:8", help="live: slice of SWE-bench Verified")
    made.add_argument("--workers", type=int, default=8, help="live: instances at once")
    options, further = read(made)
    if options.live:
        live(options)
    if not options.sessions:
        made.error("give files with recorded sessions, before --arms, or --live URL")
    sys.exit(run(Preset(traces=tuple(options.sessions), options=OPTIONS[options.profile]), options, further))


if __name__ == "__main__":
    main()
