"""Plugins of SGLang's that tests write."""

from __future__ import annotations

from pathlib import Path


def write_plugin(folder: Path, name: str, source: str) -> None:
    """Write one into a folder of the server's path; ``register`` in its source is called in every process."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:register\n")
