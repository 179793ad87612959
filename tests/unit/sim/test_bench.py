"""The benchmark over a folder of traces: it goes on where it stopped, and never mixes settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvflow.trace import write_trace
from kvflow.trace.synth import SynthOptions, synthetic_trace

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs the benchmark; returns what is in its JSON file."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    for name in ("bench_simulate", "simulate_page"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import bench_simulate  # pyright: ignore[reportMissingImports]

    data, out = tmp_path / "data", tmp_path / "result.json"
    (data / "a").mkdir(parents=True)
    write_trace(data / "a" / "react.jsonl.gz", *synthetic_trace("react", SynthOptions(workflows=14, turns=2)))
    write_trace(data / "few.jsonl.gz", *synthetic_trace("react", SynthOptions(workflows=2, turns=2)))
    (data / "odd.jsonl").write_text('{"question": 1}\n')

    def run(*arguments: str) -> dict[str, Any]:
        quick = ["--seeds", "1", "--jobs", "1", "--limit", "14", "--policies", "lru", "--json", str(out)]
        monkeypatch.setattr(sys, "argv", ["bench_simulate.py", str(data), *quick, *arguments])
        bench_simulate.main()
        return json.loads(out.read_text())

    return run


def test_the_benchmark_goes_on_where_it_stopped(
    bench: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = bench()
    told = capsys.readouterr().out
    assert list(result["sources"]) == ["a/react"]
    assert len(result["sources"]["a/react"]["setups"]) == 12
    assert "left out: few: fewer than 4 programs that fit" in told
    assert "left out: odd: odd.jsonl is of no known format" in told
    assert "1 sources, " in told
    assert str(tmp_path) not in json.dumps(result)
    assert "## a/react" in (tmp_path / "result.md").read_text()

    gone = result["sources"]["a/react"]["setups"].pop(5)
    (tmp_path / "result.json").write_text(json.dumps(result))
    again = bench()["sources"]["a/react"]["setups"]
    assert capsys.readouterr().out.count("about 0 min left") == 1
    for setup in (gone, again[5]):
        for policy in setup["policies"]:
            del policy["measures"]["calls_per_min"]
    assert again[5] == gone, "the same as it was, where it was"

    with pytest.raises(SystemExit, match="other settings"):
        bench("--seeds", "2")


def test_policies_can_be_added_later(bench: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    bench()
    added = bench("--policies", "lru", "slru")["sources"]["a/react"]["setups"]
    assert len(added) == 12
    assert {tuple(policy["policy"] for policy in setup["policies"]) for setup in added} == {("lru", "slru", "belady")}
    back = bench("--policies", "cost")["sources"]["a/react"]["setups"]
    assert [policy["policy"] for policy in back[0]["policies"]] == ["lru", "slru", "cost", "belady"]
    assert "| a/react | 100% |" in (tmp_path / "result.md").read_text()
