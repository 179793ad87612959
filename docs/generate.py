"""Write the pages of docs/ that are made from code: ``python docs/generate.py``; a test checks them."""

from __future__ import annotations

from pathlib import Path

from kvflow.cli.config import annotated_yaml
from kvflow.config import Settings
from kvflow.patches.catalog import CPU_SEAMS, SEAMS
from kvflow.patches.metrics import COUNTERS, GAUGES
from kvflow.patches.versions import supported

HERE = Path(__file__).parent


def pages() -> dict[str, str]:
    """Generated pages by file name."""
    return {"seams.md": seams(), "config.md": config(), "metrics.md": metrics()}


def seams() -> str:
    """Every touching point with SGLang."""
    lines = [
        "# Seams with SGLang",
        "",
        f"Supported: sglang{supported()}. Each row is one record of `kvflow/patches/catalog.py`. `kvflow doctor`",
        "checks all but those of the CPU engine, `GET /kvflow/v1/status` says which of the HTTP process and of a",
        "scheduler hold. One that does not turns its feature off, or is an error under `KVFLOW_STRICT=1`.",
        "",
        "| seam | feature | kind | process | target | why |",
        "|---|---|---|---|---|---|",
    ]
    for seam in SEAMS + CPU_SEAMS:
        target = seam.target.removeprefix("sglang.srt.")
        lines.append(f"| {seam.name} | {seam.feature} | {seam.kind} | {seam.role} | `{target}` | {seam.why} |")
    return "\n".join([*lines, ""])


def config() -> str:
    """Every setting."""
    lines = [
        "# Settings",
        "",
        "Precedence: flag > `KVFLOW_SECTION__NAME` variable > YAML file (`--kvflow-config`, `KVFLOW_CONFIG`) >",
        "default. `kvflow config` prints every setting with its default; what a running server uses is under",
        "`settings` in `GET /kvflow/v1/status`, and its order under `replicas[].policy`. A setting that does not",
        "exist, in the file or as a variable, stops the server with an error that names it, so that a misspelt one",
        "is not taken for the default.",
        "",
        "```yaml",
        *annotated_yaml(Settings),
        "```",
        "",
    ]
    return "\n".join(lines)


def metrics() -> str:
    """Every series of ``/metrics``."""
    lines = [
        "# Series of /metrics",
        "",
        "With `--enable-metrics`. They bear SGLang's labels of a rank, `tier` and `eviction_class` where these apply,",
        "and `dp_rank` is the replica's. Every tensor-parallel rank has series of its own, of the same numbers",
        '(measured times aside): take `tp_rank="0"`, and sum over `dp_rank`. `kvflow_degraded` is of each rank.',
        "",
        "| series | |",
        "|---|---|",
        *(f"| `kvflow_{name}_total` | {text} |" for name, text in COUNTERS),
        *(f"| `kvflow_{name}` | {text} |" for name, text in GAUGES),
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text)
