"""``kvflow serve``: SGLang's own server with kvflow switched on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvflow.cli.reading import told_as_usage
from kvflow.errors import require_installed


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model path or name, as for SGLang's --model-path.")],
    policy: Annotated[str | None, typer.Option(help="Eviction policy.")] = None,
    admission: Annotated[
        Literal["workflow", "fcfs"] | None,
        typer.Option(help="Whose requests run: those of programs whose contexts fit together, or everyone's."),
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer", help="Recognise the workflows of clients that send no hints.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="YAML file with kvflow's settings.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Run on the CPU engine, without a GPU.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if any seam with SGLang does not hold.")] = False,
) -> None:
    """Start SGLang with kvflow. Everything after ``--`` goes to ``sglang.launch_server`` as it is.

    Example: kvflow serve meta-llama/Llama-3.1-8B-Instruct -- --enable-hierarchical-cache --hicache-ratio 2
    """
    with told_as_usage():
        require_installed("sglang", "sglang", "kvflow serve")
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--enable-kvflow"]
    environment = dict(os.environ)
    if policy:
        command += ["--kvflow-policy", policy]
    if admission:
        command += ["--kvflow-admission", admission]
    if infer:
        command.append("--kvflow-infer")
    if config:
        command += ["--kvflow-config", str(config)]
    if strict:
        environment["KVFLOW_STRICT"] = "1"
    if cpu:
        from kvflow.patches.cpu.environment import cpu_engine_args, cpu_engine_environment

        environment = cpu_engine_environment(environment)
        command += cpu_engine_args()
    os.execve(sys.executable, [*command, *context.args], environment)
