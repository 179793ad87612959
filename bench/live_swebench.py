"""mini-swe-agent (2.x) on instances of SWE-bench, against a server that runs."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import yaml

from kvflow.cli.circumstances import circumstances

ENGINES = {
    "docker": ("docker", "MSWEA_DOCKER_EXECUTABLE"),
    "podman": ("docker", "MSWEA_DOCKER_EXECUTABLE"),
    "singularity": ("singularity", "MSWEA_SINGULARITY_EXECUTABLE"),
    "apptainer": ("singularity", "MSWEA_SINGULARITY_EXECUTABLE"),
}
"""Container engines: mini-swe-agent's class of environments, and the variable that names the program."""
ENDED = ("Submitted", "LimitsExceeded", "TimeExceeded", "RepeatedFormatError")
"""How an agent ends that has worked; anything else is an exception's name."""


def add_options(made: ArgumentParser) -> None:
    """What a live run is told."""
    made.add_argument("--live", metavar="URL", help="run mini-swe-agent itself against this server")
    made.add_argument("--model", default="default", help="live: name of the served model")
    made.add_argument("--subset", default="verified", help="live: of SWE-bench, or a data set's path")
    made.add_argument("--instances", default="0:8", help="live: slice of them")
    made.add_argument("--workers", type=int, default=8, help="live: instances at once")
    made.add_argument("--output", type=Path, help="live: new folder for trajectories; default: named after the time")


def live(options: Namespace) -> int:
    """Run mini-swe-agent on instances; returns 0 if every agent has worked.

    Its own exit status says nothing: it catches what happens to an instance, and notes it.
    """
    engine = next(filter(shutil.which, ENGINES), None)
    missing = [] if find_spec("minisweagent") else ["the package mini-swe-agent (pip install mini-swe-agent)"]
    if engine is None:
        missing.append(f"a container engine ({', '.join(ENGINES)})")
    if engine is None or missing:
        sys.exit(f"--live needs {' and '.join(missing)}; recorded sessions can be replayed without")
    output = options.output or Path(f"swebench-live-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}")
    if output.exists():
        sys.exit(f"{output} is there already: instances in it would be skipped; give --output another folder")
    command, variables = asked(options, engine, output)
    began_s = time.perf_counter()
    status = subprocess.run(command, env=os.environ | variables, check=False).returncode
    took_s = time.perf_counter() - began_s
    statuses = exit_statuses(output)
    counts = {name: len(instances) for name, instances in statuses.items()}
    told = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none has ended"
    print(f"\ninstances {options.instances}: {took_s:.1f} s; {told}; trajectories in {output}")
    if options.json:
        settings = {name: getattr(options, name) for name in ("model", "instances", "workers")}
        settings["subset"] = Path(options.subset).name
        settings |= {"container_engine": engine, "mini_swe_agent": metadata.version("mini-swe-agent")}
        result = {"bench": "swebench live", **circumstances(), "settings": settings, "took_s": took_s}
        result |= {"exit_status": status, "counts": counts, "instances": statuses}
        options.json.write_text(json.dumps(result, indent=1))
    return status or int(not worked(counts))


def asked(options: Namespace, engine: str, output: Path) -> tuple[list[str], dict[str, str]]:
    """The command of mini-swe-agent, and its variables."""
    environment_class, variable = ENGINES[engine]
    command = [sys.executable, "-m", "minisweagent.run.utilities.mini_extra", "swebench", "--subset", options.subset]
    command += ["--split", "test", "--slice", options.instances, "--workers", str(options.workers)]
    command += ["--model", f"openai/{options.model}", "--environment-class", environment_class]
    base = f"{options.live.rstrip('/')}/v1"
    variables = {"OPENAI_API_BASE": base, "OPENAI_BASE_URL": base, "OPENAI_API_KEY": "none", variable: engine}
    variables["MSWEA_COST_TRACKING"] = "ignore_errors"  # a served model has no price, which is an error otherwise
    return [*command, "--output", str(output)], variables


def exit_statuses(output: Path) -> dict[str, list[str]]:
    """Instances by how they ended, as mini-swe-agent notes it; nothing if none has."""
    found: dict[str, list[str]] = {}
    for path in output.glob("exit_statuses_*.yaml"):
        noted = yaml.safe_load(path.read_text())["instances_by_exit_status"]
        found |= {str(name): instances for name, instances in noted.items()}
    return found


def worked(counts: Mapping[str, int]) -> bool:
    """Whether there were agents, and none ended by an error."""
    return bool(counts) and set(counts) <= set(ENDED)
