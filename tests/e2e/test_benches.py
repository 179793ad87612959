"""Benchmarks in their smallest form: they start, understand their options, and hand on those of others."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from kvflow.patches.cpu.environment import server_environment
from kvflow.patches.cpu.launch import launch_server
from kvflow.replay.models import LLAMA_8B
from kvflow.trace import SynthOptions, synthetic_trace, write_trace
from tests import forking

pytestmark = [pytest.mark.beside]

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ModuleType]:
    """Imports a benchmark that is to see a command line."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)

    def imported(name: str, *arguments: str) -> ModuleType:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        return importlib.import_module(name)

    return imported


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    write_trace(path, *synthetic_trace("react", SynthOptions(workflows=3, turns=2)))
    return str(path)


@pytest.fixture
def dry(bench: Callable[..., ModuleType], capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a replay benchmark dry; returns its exit status and what it printed."""

    def run(name: str, *arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            bench(name, *arguments, "--profile", "gpu", "--dry-run").main()
        told = capfd.readouterr()
        return int(ended.value.code or 0), told.out + told.err

    return run


def arms(told: str) -> list[str]:
    return [line.partition(":")[0].strip() for line in told.splitlines() if "--device" in line]


def test_arms_are_those_that_are_asked_for(dry: Callable[..., tuple[int, str]], trace: str) -> None:
    status, told = dry("bench_swebench", trace, "--arm", "lru", "--arm", "kvflow")
    assert (status, arms(told)) == (0, ["lru", "kvflow"]), told


def test_options_of_replay_may_come_first_and_replace_the_presets(
    dry: Callable[..., tuple[int, str]], trace: str
) -> None:
    status, told = dry("bench_multi_agent", "--rounds", "3", "--concurrency=2", "--flags", "--tp 2", trace)
    assert status == 0, told
    assert "3 programs, 2 at once" in told
    assert told.count("at once") == 1
    assert "3 rounds" in told
    assert told.count("--tp 2") == len(arms(told)) == 5


def test_what_nobody_understands_is_told(dry: Callable[..., tuple[int, str]], trace: str) -> None:
    status, told = dry("bench_swebench", "--round", "1", trace)
    assert status == 2
    assert "unrecognized arguments: --round" in told


def test_each_rate_keeps_its_rounds_and_reports_apart(bench: Callable[..., ModuleType], trace: str) -> None:
    module = bench("bench_continuum_paper", trace, "--rates", "6", "12", "--folder", "kept", "--html", "a/r.html")
    options, further = module.read_command()
    assert not further
    found = [module.preset(options, rate, alone=False).options for rate in options.rates]
    assert [(each["rate"], each["folder"], each["html"]) for each in found] == [
        (6, "kept/rate-6", "a/r-6.html"),
        (12, "kept/rate-12", "a/r-12.html"),
    ]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("bench_continuum_paper", ["--fast-link"]), ("bench_bfcl", ["--tasks"]), ("bench_kvflow_paper", None)],
)
def test_the_other_replays_can_be_tried_dry(
    dry: Callable[..., tuple[int, str]], trace: str, name: str, arguments: list[str] | None
) -> None:
    status, told = dry(name, *([] if arguments is None else [*arguments, trace]))
    assert status == 0, told
    assert "kvflow" in arms(told)


@pytest.mark.parametrize("name", ["bench_swebench", "bench_continuum_paper"])
def test_contexts_of_coding_agents_fit_the_gpu_that_is_meant(
    dry: Callable[..., tuple[int, str]], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "long.jsonl"
    options = SynthOptions(workflows=80, turns=1, fixed_tokens=2_000, task_tokens=37_000, output_tokens=500)
    write_trace(path, *synthetic_trace("react", options))
    _, told = dry(name, str(path), "--arm", "lru")
    sizes = re.findall(r"device ([\d,]+), host ([\d,]+)", told)
    assert sizes, told
    for size in sizes:
        device, host = (int(tokens.replace(",", "")) * LLAMA_8B.kv_bytes_per_token for tokens in size)
        assert 20e9 < device < 90e9
        assert 40e9 < host < 100e9


def test_a_live_run_counts_how_agents_ended(bench: Callable[..., ModuleType], tmp_path: Path) -> None:
    live = bench("live_swebench")
    assert live.exit_statuses(tmp_path) == {}
    assert not live.worked({})
    noted = "instances_by_exit_status:\n    Submitted:\n    - a__a-1\n    - b__b-2\n"
    (tmp_path / "exit_statuses_17.5.yaml").write_text(noted)
    assert live.exit_statuses(tmp_path) == {"Submitted": ["a__a-1", "b__b-2"]}
    assert live.worked({"Submitted": 2, "LimitsExceeded": 1})
    assert not live.worked({"Submitted": 2, "RuntimeError": 1})


@pytest.mark.parametrize(
    ("engine", "environment_class", "variable"),
    [("podman", "docker", "MSWEA_DOCKER_EXECUTABLE"), ("apptainer", "singularity", "MSWEA_SINGULARITY_EXECUTABLE")],
)
def test_a_live_run_names_the_container_engine_that_is_there(
    bench: Callable[..., ModuleType], engine: str, environment_class: str, variable: str, tmp_path: Path
) -> None:
    live = bench("live_swebench")
    options = Namespace(live="http://h:1/", model="m", subset="verified", instances="0:2", workers=1)
    command, variables = live.asked(options, engine, tmp_path / "new")
    assert command[command.index("--environment-class") + 1] == environment_class
    assert variables[variable] == engine
    assert variables["OPENAI_BASE_URL"] == "http://h:1/v1"
    assert variables["MSWEA_COST_TRACKING"] == "ignore_errors"


def test_a_live_run_replays_nothing(dry: Callable[..., tuple[int, str]]) -> None:
    status, told = dry("bench_swebench", "--live", "http://h:1", "--rounds", "2")
    assert status == 2
    assert "--live replays nothing" in told


@pytest.mark.parametrize("name", ["bench_calm", "bench_overhead", "bench_prefetch", "bench_segments", "bench_soak"])
def test_benches_that_start_servers_begin_without_fault(
    bench: Callable[..., ModuleType], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        bench(name, "--help").main()
    assert f"bench/{name}.py" in capsys.readouterr().out


def test_reuse_is_measured_at_its_smallest(
    bench: Callable[..., ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench("serving"), "launch_server", partial(launch_server, spawn=forking.spawn))
    shape = ("--agents", "2", "--task", "96", "--prefix", "32", "--answer", "64", "--programs", "1", "--warm-up", "0")
    bench("bench_reuse", *shape, "--layers", "2", "--json", str(tmp_path / "reuse.json")).main()
    result = json.loads((tmp_path / "reuse.json").read_text())
    reused = {row["arm"]: row["reused"] for row in result["rows"] if row["agent"] == 2}
    assert reused["dense"] == 0
    assert reused["rotate"] == 0.5
    assert result["layers"] == 2


def test_the_vanilla_arm_is_without_kvflow(bench: Callable[..., ModuleType], tmp_path: Path) -> None:
    module = bench("bench_overhead")
    _, variables = module.ARMS["vanilla"]
    environment = server_environment(python_path=[module.write_plugin(tmp_path)]) | variables
    ask = "from sglang.srt import plugins as p; print([*p.load_plugins_by_group(p.GENERAL_PLUGINS_GROUP)])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "['cpu-only']"


def test_the_demo_runs_and_kvflow_computes_less_again(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).parent / "kvflow"),
        "demo",
        "--rounds",
        "1",
        "--workflows",
        "12",
        "--json",
        "--folder",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["identical_tokens"]
    ratios = {each["metric"]: each["ratio"] for each in result["comparison"]}
    # Next to nothing, mostly; but programs that start in lockstep come round before the guard has seen what prediction
    # gains, and then their prompts are lost once.
    assert ratios["recomputed tokens"] <= 0.9
    assert (tmp_path / "demo.html").stat().st_size > 50_000
