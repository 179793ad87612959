"""Rounds on disk: kept as soon as they are over, and used again as long as nothing has changed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import kvflow
from kvflow.errors import ConfigError
from kvflow.replay.arms import Arm
from kvflow.replay.record import CallRecord, Round, ToolRecord, WorkflowRecord
from kvflow.sim.workload import Workload

_MARK = "plan.json"
_LOCK = "lock"
_ROUNDS = "round-*.json"
_SECRET = "KVFLOW_API_KEY"
_TELLING = {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}
"""Variables that tell servers how to run; those of SGLang do, too, but not on the CPU engine."""
_BY_NAME = ("arms", "settings files")
"""Of a plan: what may become more or fewer, as long as what was there and is there has not changed."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a folder to this process for the length of a ``with`` block; it is made if it is not there.

    Raises:
        ConfigError: another replay has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{folder} is in use by another replay: wait until it is over, or give another --folder"
            ) from None
        yield


def claim(folder: Path, plan: dict[str, Any], workload: Workload, *, fresh: bool = False) -> None:
    """Make sure that rounds kept in a folder are of this plan, these traces, this kvflow and this SGLang.

    Args:
        folder: held by the caller.
        plan: what must not have changed of it; arms by name, which may join and leave.
        workload: what is drawn from.
        fresh: drop what was kept.

    Raises:
        ConfigError: they are not; the message says what differs.
    """
    if fresh:
        for path in folder.glob(_ROUNDS):
            path.unlink()
    mark = json.loads(json.dumps(_mark(plan, workload), default=str))
    path = folder / _MARK
    if path.exists() and any(folder.glob(_ROUNDS)):
        kept = json.loads(path.read_text())
        before = kept.get("plan", {})
        differing = sorted(name for name in mark if _differ(name, before.get(name), mark[name]))
        if differing:
            raise ConfigError(
                f"{folder} holds rounds of another replay ({kept['created']}; what differs: {', '.join(differing)}): "
                "drop them with --fresh, or give another --folder"
            )
        mark |= {name: before[name] | mark[name] for name in _BY_NAME if name in mark}
    path.write_text(json.dumps({"created": time.strftime("%Y-%m-%d %H:%M:%S"), "plan": mark}))


def round_path(folder: Path, index: int, arm: Arm) -> Path:
    """Where a round is kept."""
    return folder / f"round-{index}-{arm.slug}.json"


def write_round(path: Path, seen: Round) -> None:
    """Keep a round, whole or not at all."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(asdict(seen)))
    beside.replace(path)


def read_round(path: Path) -> Round:
    """Read a round that was kept."""
    data = json.loads(path.read_text())
    known = {name: data[name] for name in (each.name for each in fields(Round)) if name in data}
    return replace(
        Round(**known),
        kept=True,
        calls=[CallRecord(**call) for call in data["calls"]],
        tools=[ToolRecord(**tool) for tool in data["tools"]],
        workflows=[WorkflowRecord(**workflow) for workflow in data["workflows"]],
    )


def traces_digest(workload: Workload) -> str:
    """Digest of all that is drawn from, whatever its files are called; 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for program in workload.programs:
        digest.update(program.start.model_dump_json().encode())
        for thread, events in program.threads.items():
            digest.update(thread.encode())
            for event in events:
                digest.update(event.model_dump_json().encode())
    return digest.hexdigest()[:16]


def file_digests(paths: Iterable[str]) -> dict[str, str | None]:
    """Digests of what is in files; None for one that cannot be read."""
    found: dict[str, str | None] = {}
    for path in sorted(paths):
        try:
            found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
        except OSError:
            found[path] = None
    return found


def _differ(name: str, before: Any, now: Any) -> bool:
    if name in _BY_NAME and isinstance(before, dict):
        return any(before[key] != now[key] for key in before.keys() & now.keys())
    return before != now


def _mark(plan: dict[str, Any], workload: Workload) -> dict[str, Any]:
    prefixes = ("KVFLOW_",) if (plan.get("engine") or {}).get("device") == "cpu" else ("KVFLOW_", "SGLANG_")
    telling = {name for name in os.environ if name.startswith(prefixes) and name != _SECRET} | _TELLING
    environment = {name: os.environ[name] for name in telling & os.environ.keys()}
    return plan | {
        "traces": traces_digest(workload),
        "kvflow's source": _source_digest(Path(kvflow.__file__).parent),
        "versions": {name: _version(name) for name in ("kvflow", "sglang", "torch")},
        "environment": dict(sorted(environment.items())),
    }


def _source_digest(package: Path) -> str:
    """Of kvflow as it is on disk: a commit would not tell one uncommitted change from another."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(package)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
