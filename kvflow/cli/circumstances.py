"""Where, when and with what a result was made."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

GPUS = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def circumstances() -> dict[str, Any]:
    """Time, command, git state, machine, settings by variables, and versions; what is not installed has no version.

    Absolute paths are cut to their last part, and API keys left out.
    """
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": _command(sys.argv),
        "variables": {
            name: "…" if name.endswith("_KEY") else _without_folders(value)
            for name, value in sorted(os.environ.items())
            if name.startswith("KVFLOW_")
        },
        "git": _git(),
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "gpus": _gpus(),
        },
        "versions": _versions("kvflow", "sglang", "torch") | {"python": platform.python_version()},
    }


def _command(words: Sequence[str]) -> str:
    """What a shell takes for these words."""
    told = [_program(Path(words[0]))]
    for before, word in pairwise(words):
        told.append("…" if before.endswith("-api-key") else shlex.quote(_without_keys(_without_folders(word))))
    return " ".join(told)


def _without_keys(argument: str) -> str:
    whole = re.sub(r"^(--\S*api-key=).*", r"\1…", argument, flags=re.DOTALL)
    return re.sub(r"(api-key[= ])\S+", r"\1…", whole)


def _program(path: Path) -> str:
    """Give a benchmark by its place in the repository; all else that measures is our own command."""
    script = path.resolve()
    bench = next((folder for folder in script.parents if folder.name == "bench"), None)
    if bench is None or script.suffix != ".py":
        return "kvflow"
    return f"python {script.relative_to(bench.parent).as_posix()}"


def _without_folders(argument: str) -> str:
    option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    return option + equals + (Path(value).name if value.startswith("/") else value)


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git() -> dict[str, Any]:
    """State of kvflow's own repository; nothing where it is installed in a folder of somebody else's."""

    def run(*command: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(command, capture_output=True, text=True, cwd=here, check=True).stdout.strip()

    try:
        run("git", "ls-files", "--error-unmatch", Path(__file__).name)
        return {"commit": run("git", "rev-parse", "HEAD"), "dirty": bool(run("git", "status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _gpus() -> list[str]:
    """Name, memory and driver of every GPU; none where nothing knows of any. Asked without torch, which is slow."""
    try:
        found = subprocess.run(GPUS, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]
