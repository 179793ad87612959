"""The benchmark of inferred workflows, on made-up chains."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from kvflow.trace import SynthOptions, synthetic_trace, write_trace

BENCH = Path(__file__).parents[3] / "bench"


def test_chains_are_found_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, out = tmp_path / "chain.jsonl", tmp_path / "infer.json"
    options = SynthOptions(
        workflows=6, agents=3, turns=2, fixed_tokens=128, task_tokens=64, output_tokens=48, relay=True
    )
    write_trace(trace, *synthetic_trace("chain", options))
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    bench = importlib.import_module("bench_infer")
    for name in ("one", "other"):
        arguments = ["bench_infer.py", str(trace), "--name", name, "--programs", "6", "--at-once", "3"]
        monkeypatch.setattr(sys, "argv", [*arguments, "--json", str(out)])
        bench.main()
    sources = json.loads(out.read_text())["sources"]
    assert set(sources) == {"one", "other"}
    assert all(each["commit"] and each["machine"] for each in sources.values()), "they may be of different ones"
    assert sources["one"]["calls"] == 36
    assert sources["one"]["in_one_workflow"] == sources["one"]["workflows"] == 6
    assert sources["one"]["of_several_programs"] == 0
