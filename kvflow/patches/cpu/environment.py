"""Flags and variables a server on the CPU engine starts with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import kvflow
from kvflow.patches.cpu import ENGINE_VARIABLE
from kvflow.patches.switch import ENABLE_VARIABLE

KEEP_ALIVE_S = 60
"""SGLang's own 5 s are those of most clients, who then write to a connection just as the server closes it."""


def cpu_engine_args() -> list[str]:
    """Give the flags of SGLang the CPU engine needs beyond its environment; everything else has defaults there."""
    return ["--device", "cpu"]


def cpu_engine_environment(environment: Mapping[str, str], *, ranks: int = 1) -> dict[str, str]:
    """Add to an environment what a server on the CPU engine needs.

    Each rank gets an equal share of the cores this process may use, at least one, unless `environment` says otherwise.
    Its threads sleep at barriers instead of spinning: on a busy machine that is several times faster. Nothing is
    compiled here, so no process needs the compiler: importing it takes an eighth of a server's start. MKL's strict
    conditional numerical reproducibility gives each row of a product the same bits whatever rows are beside it.
    """
    cores = sorted(os.sched_getaffinity(0))
    added = {"OMP_NUM_THREADS": str(max(1, len(cores) // ranks)), "OMP_WAIT_POLICY": "passive"}
    added |= {"TORCHDYNAMO_DISABLE": "1", "MKL_CBWR": "AUTO,STRICT"}
    if ranks > 1:
        added["SGLANG_CPU_OMP_THREADS_BIND"] = bind_list(cores, ranks)
    return added | dict(environment) | {ENGINE_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": ""}


def server_environment(
    *, ranks: int = 1, python_path: Sequence[Path | str] = (), device: str = "cpu", offline: bool = True
) -> dict[str, str]:
    """Make the environment `launch_server` starts from.

    On the CPU engine inherited ``SGLANG_*`` and ``PYTHON*`` variables are dropped, so that a server is what its caller
    says, but for the folder by which kvflow was found: a server runs the same. ``KVFLOW_*`` stay. On other devices all
    stay: what is installed there may be found by them. Only ``KVFLOW_ENABLE`` never does: whether a server runs kvflow
    is for the caller to say. Nothing is looked up on model hubs unless ``offline`` is false,
    health checks do not generate (they would leave radix nodes), and idle connections stay open.
    """
    environment = dict(os.environ)
    if device == "cpu":
        kept = {name: value for name, value in environment.items() if not name.startswith(("SGLANG_", "PYTHON"))}
        python_path = [*python_path, *_found_by()]
        environment = cpu_engine_environment(kept, ranks=ranks)
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if offline else {}
    environment |= {
        ENABLE_VARIABLE: "",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        "SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
        "PYTHONUNBUFFERED": "1",
    }
    found = [*map(str, python_path), *filter(None, [environment.get("PYTHONPATH")])]
    if found:
        environment["PYTHONPATH"] = os.pathsep.join(found)
    return environment


def _found_by() -> list[str]:
    """The folder of this kvflow, if it was found by ``PYTHONPATH``: another one may be installed."""
    root = Path(kvflow.__file__).resolve().parents[1]
    entries = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return [str(root)] if any(Path(entry).resolve() == root for entry in entries) else []


def bind_list(cores: Sequence[int], ranks: int) -> str:
    """Share out cores for ``SGLANG_CPU_OMP_THREADS_BIND``; with fewer cores than ranks they are used more than once.

    SGLang refuses more ranks than NUMA nodes without it.
    """
    share = max(1, len(cores) // ranks)
    groups = [[cores[(rank * share + i) % len(cores)] for i in range(share)] for rank in range(ranks)]
    return "|".join(",".join(map(str, group)) for group in groups)
