"""``kvflow sim``: measure a server and fit a profile to it, for ``kvflow simulate`` and the settings of a server."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import httpx
import typer
from rich.console import Console

from kvflow.cli.ending import ended_by_signals
from kvflow.cli.live import ApiKey
from kvflow.cli.reading import check_folders, told_as_usage, write
from kvflow.errors import KVFlowError

if TYPE_CHECKING:
    from kvflow.sim.fit import Fit

app = typer.Typer(help="Measure a server, and fit the simulator's profile to it.", no_args_is_help=True)

EMBEDDED_DEVICE_TOKENS = 16_384
EMBEDDED_LINK_BYTES_S = 1e8
"""That of ``kvflow demo``."""


@app.command()
def fit(
    samples: Annotated[Path, typer.Argument(help="What `kvflow sim measure` wrote.")],
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Where the profile goes; else it is printed.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="Profile that stands in for times that were not measured.")] = None,
    reduction: Annotated[
        Literal["median", "minimum"],
        typer.Option(help="What counts of repetitions; the minimum on a machine that others use as well."),
    ] = "median",
    notes: Annotated[str, typer.Option(help="What to remember of the machine and the model.")] = "",
) -> None:
    """Fit a profile to measurements by non-negative least squares on relative errors.

    Example: kvflow sim fit samples.json --out profile.json && kvflow simulate trace.jsonl --profile profile.json
    """
    from kvflow.sim import load_profile
    from kvflow.sim.fit import Measurements
    from kvflow.sim.fit import fit as fit_profile

    check_folders(out)
    try:
        measured = Measurements.read(samples)
        if notes:
            measured = measured.model_copy(update={"notes": notes})
        found = fit_profile(measured, base=load_profile(base) if base else None, reduction=reduction)
    except KVFlowError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    text = json.dumps(found.profile.model_dump(), indent=2) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text)
    _report(found)


@app.command()
def costs(
    profile: Annotated[str, typer.Argument(help="What `kvflow sim fit` wrote, or h200, a100.")],
    model: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="config.json of the model, for a data sheet's.")
    ] = None,
) -> None:
    """Print the settings by which a server of this profile weighs what hits save.

    Example: kvflow sim costs profile.json > costs.yaml && kvflow serve MODEL --config costs.yaml
    """
    from dataclasses import asdict

    from kvflow.sim import load_profile

    try:
        found = load_profile(profile, model)
    except KVFlowError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo("costs:")
    for name, seconds in asdict(found.costs).items():
        typer.echo(f"  {name}: {seconds:.4g}")


def _report(found: Fit) -> None:
    """Say on stderr how well the profile fits and what of it is not measured."""
    for kind, error in found.errors.items():
        missed = f"median error {error.median_error:6.1%}, worst {error.worst_error:6.1%}"
        typer.echo(f"{kind:8} {error.samples:3} settings, {missed}", err=True)
    for text in found.assumed:
        typer.echo(f"not measured: {text}", err=True)


@app.command()
def measure(
    url: Annotated[str | None, typer.Option(help="A running SGLang server; else one on the CPU engine.")] = None,
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "measured",
    out: Annotated[Path, typer.Option(dir_okay=False, help="Where the samples go.")] = Path("samples.json"),
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of every setting.")] = 3,
    max_fill_tokens: Annotated[
        int, typer.Option(help="Largest device memory to fill for measuring loads.")
    ] = 1_000_000,
    api_key: ApiKey = None,
) -> None:
    """Measure prefill, decode and load-back times of a server that nobody else uses meanwhile.

    Its cache is filled with random prompts. Loads are measured if kvflow is on in it and it has a host tier.
    """
    from kvflow.replay.arms import server_url
    from kvflow.sim.measure import MeasureSettings
    from kvflow.sim.measure import measure as measure_server

    check_folders(out)
    with told_as_usage():
        url = None if url is None else server_url(url)
    settings = MeasureSettings(repeats=repeats, max_fill_tokens=max_fill_tokens)

    def show(text: str) -> None:
        typer.echo(text, err=True)

    try:
        with ended_by_signals(), _server(url) as address:
            samples = asyncio.run(measure_server(address, name, settings, show, api_key))
    except KVFlowError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except httpx.HTTPError as error:
        typer.echo(f"error: the server does not answer any more: {error!r}", err=True)
        raise typer.Exit(1) from None
    write(out, lambda: out.write_text(samples.model_dump_json(indent=1) + "\n"), Console(stderr=True))


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    """Give the address of the server to measure, which is started on the CPU engine if there is none."""
    if url is not None:
        yield url
        return
    from kvflow.errors import require_installed

    require_installed("sglang", "sglang", "measuring the CPU engine")
    from kvflow.patches.cpu.launch import launch_server
    from kvflow.patches.cpu.model import build_model

    flags = ["--enable-kvflow", "--enable-hierarchical-cache", "--hicache-ratio", "2"]
    flags += ["--hicache-write-policy", "write_through", "--page-size", "16", "--sleep-on-idle"]
    flags += ["--max-total-tokens", str(EMBEDDED_DEVICE_TOKENS), "--max-running-requests", "8"]
    environment = {"KVFLOW_CPU_LINK_BYTES_PER_S": str(EMBEDDED_LINK_BYTES_S), "KVFLOW_STRICT": "1"}
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder) / "model")
        with launch_server(model, log_path=Path(folder) / "log", extra_args=flags, env=environment) as server:
            yield server.url
