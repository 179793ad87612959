"""KVFlow's workload is played in the sizes that its paper gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvflow.trace import open_trace, programs

BENCH = Path(__file__).parents[3] / "bench"


def test_prompts_do_not_grow_and_the_device_holds_those_of_four_agents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    monkeypatch.delitem(sys.modules, "bench_kvflow_paper", raising=False)
    import bench_kvflow_paper  # pyright: ignore[reportMissingImports]

    made = bench_kvflow_paper.preset(8192, "gpu", 1.0, tmp_path)
    work = list(programs(open_trace(made.traces[0], pytest.fail)[1]))
    calls = [call for program in work for call in program.calls]
    assert {call.fixed_tokens for call in calls} == {8192}
    said = [call.prompt.tokens - 8192 for call in calls]
    assert 30 < sum(said) / len(said) < 36
    assert max(said) < 3 * 32
    longest = max(call.prompt.tokens + call.output_tokens for call in calls)
    assert 4 * 8256 < made.options["device-tokens"] < 5 * 8256
    assert longest < 8192 + 6 * 32
