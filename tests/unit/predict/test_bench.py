"""The benchmark of predictions over a folder of traces."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvflow.trace import write_trace
from kvflow.trace.synth import SynthOptions, synthetic_trace

BENCH = Path(__file__).parents[3] / "bench"


def test_every_source_is_on_the_page_with_what_it_can_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    monkeypatch.delitem(sys.modules, "bench_predict", raising=False)
    import bench_predict  # pyright: ignore[reportMissingImports]

    data, out = tmp_path / "data", tmp_path / "result.json"
    data.mkdir()
    for kind in ("react", "supervisor"):
        write_trace(data / f"{kind}.jsonl.gz", *synthetic_trace(kind, SynthOptions(workflows=12, turns=6, seed=1)))
    (data / "odd.jsonl").write_text('{"question": 1}\n')
    monkeypatch.setattr(sys, "argv", ["bench_predict.py", str(data), "--json", str(out)])
    bench_predict.main()
    assert "left out: odd: odd.jsonl is of no known format" in capsys.readouterr().out
    sources = json.loads(out.read_text())["sources"]
    tables = {part.split("\n")[0]: part for part in out.with_suffix(".md").read_text().split("\n## ")[1:]}
    durations, agents = tables["Tool durations"], tables["Who runs next"]
    assert f"| react | {sources['react']['tools']['calls']:,} (" in durations
    assert f"{sources['react']['tools']['online']['auc']['2.0']:.2f}" in durations
    assert "| react |" not in agents, "one agent runs alone"
    assert f"| supervisor | {sources['supervisor']['agents']['steps']:,} |" in agents
    assert "| react | tools |" in tables["When a context is used next"]
