"""``kvflow doctor``: what is installed, which seams hold, and how to fix what does not."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvflow.errors import KVFlowError
from kvflow.patches import versions

PACKAGES = ("kvflow", "sglang", "torch", "flashinfer-python", "networkx", "pydantic", "httpx", "openai", "wrapt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong, and what to do about it."""

    problem: str
    fix: str


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False) -> None:
    """Say what is installed, which seams with SGLang hold, and how to fix what does not.

    Exits with 1 if something kvflow needs is broken. SGLang not being installed is not: the client works without it.
    """
    report = examine()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    raise typer.Exit(1 if report["findings"] else 0)


def examine() -> dict[str, Any]:
    """Collect the report; every probe is guarded, so that it always comes out."""
    installed = {name: _version(name) for name in PACKAGES}
    findings = [*_requirement_findings()]
    if not findings:  # settings cannot be read without them
        findings += _environment_findings()
    seams: list[dict[str, Any]] = []
    if installed["sglang"] is not None:
        findings += _version_findings()
        seams, problem = check_seams()
        if problem:
            findings.append(Finding(problem=problem, fix="run `python -c 'import sglang'` and mend what it reports"))
        findings += [
            Finding(
                problem=f"seam {seam['name']} ({seam['target']}): {seam['problem']}",
                fix=f"feature {seam['feature']} stays off; install a supported SGLang: {versions.supported()}",
            )
            for seam in seams
            if not seam["holds"]
        ]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": installed,
        "supported_sglang": str(versions.supported()),
        "seams": seams,
        "findings": [asdict(finding) for finding in findings],
    }


def check_seams() -> tuple[list[dict[str, Any]], str]:
    """Check every seam in a process of its own, as importing SGLang is slow and can fail in many ways.

    Returns:
        the states, and what went wrong when there are none.
    """
    environment = dict(os.environ)
    environment.setdefault("KVFLOW_CPU_ENGINE", "" if _has_gpu() else "1")
    done = subprocess.run(
        [sys.executable, "-m", "kvflow.patches.check"], capture_output=True, text=True, env=environment, check=False
    )
    try:
        return json.loads(done.stdout.strip().splitlines()[-1]), ""
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return [], f"SGLang cannot be imported: {last[0]}"


def _version_findings() -> list[Finding]:
    try:
        versions.require_supported()
    except KVFlowError as error:
        return [Finding(problem=str(error), fix=f'pip install "sglang{versions.supported()}"')]
    return []


def _requirement_findings() -> list[Finding]:
    """What kvflow needs and does not have, as where it was installed with ``--no-deps``."""
    missing = [need for need in versions.requirements() if _version(need.name) is None]
    return [
        Finding(problem=f"{need.name} is not installed, and kvflow needs it", fix=f'pip install "{need}"')
        for need in missing
    ]


def _environment_findings() -> list[Finding]:
    from kvflow import config
    from kvflow.patches.orders import require_servable

    findings = []
    try:
        require_servable(config.load().eviction.policy)
    except KVFlowError as error:
        findings.append(Finding(problem=str(error), fix="correct or unset it"))
    chosen = os.environ.get("SGLANG_PLATFORM")
    if chosen and chosen != "kvflow-cpu":
        findings.append(
            Finding(
                problem=f"SGLANG_PLATFORM={chosen} makes SGLang skip plugins of packages that ship another platform",
                fix="unset SGLANG_PLATFORM; SGLang finds its platform by itself",
            )
        )
    allowed = os.environ.get("SGLANG_PLUGINS")
    if allowed and "kvflow" not in allowed.split(","):
        findings.append(Finding(problem="SGLANG_PLUGINS does not list kvflow", fix="add kvflow to SGLANG_PLUGINS"))
    return findings


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _has_gpu() -> bool:
    return os.path.exists("/proc/driver/nvidia/version")


def _print(report: dict[str, Any]) -> None:
    console = Console()
    console.print(f"python {report['python']} on {report['platform']}")
    for name, version in report["packages"].items():
        console.print(f"  {name:<18} {version or '[dim]not installed[/dim]'}", highlight=False)
    console.print(f"  supported sglang   {report['supported_sglang']}", highlight=False)
    if report["seams"]:
        table = Table("seam", "feature", "kind", "holds", title="seams with SGLang")
        for seam in report["seams"]:
            holds = "yes" if seam["holds"] else f"[red]no: {seam['problem']}[/red]"
            table.add_row(seam["name"], seam["feature"], seam["kind"], holds)
        console.print(table)
    for finding in report["findings"]:
        console.print(f"[red]problem[/red] {escape(finding['problem'])}\n  [green]fix[/green] {escape(finding['fix'])}")
    if not report["findings"]:
        console.print("[green]nothing to fix[/green]")
