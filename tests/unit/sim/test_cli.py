"""``kvflow simulate``, from traces on disk to tables, JSON and HTML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvflow.cli import app
from kvflow.report.simulation_record import Simulation
from kvflow.trace import write_trace
from kvflow.trace.synth import SynthOptions, synthetic_trace

QUICK = ["--jobs", "1", "--concurrency", "3"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "react.jsonl.gz"
    write_trace(path, *synthetic_trace("react", SynthOptions(workflows=6, turns=4, task_tokens=2000)))
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)], env={"COLUMNS": "160", "TERMINAL_WIDTH": "160"})


def simulated(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    out = tmp_path / "result.json"
    done = call(*arguments, "--json", out)
    assert done.exit_code == 0, done.output
    return json.loads(out.read_text())


def test_all_policies_by_default(trace: Path, tmp_path: Path) -> None:
    done = call(trace, *QUICK, "--seeds", 2, "--json", tmp_path / "x.json", "--html", tmp_path / "x.html")
    assert done.exit_code == 0, done.output
    html = (tmp_path / "x.html").read_text()
    for policy in ("lru", "steps", "ttl", "saga", "cost", "belady"):
        assert policy in done.output
        assert policy in html
    assert "react.jsonl.gz (synthetic react): 6 programs" in done.output
    assert "3 at a time: device " in done.output
    assert " tokens (50%), host –, storage –" in done.output
    assert "relative to LRU" in done.output
    document = json.loads((tmp_path / "x.json").read_text())
    assert Simulation.read(document).policies == ("lru", "steps", "ttl", "saga", "cost", "belady")
    assert document["settings"]["seeds"] == [0, 1]
    assert {"created", "git", "machine", "versions", "command"} <= document.keys()
    assert document["profile"]["name"] == "h200"


def test_no_path_of_this_machine_gets_into_the_document(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kvflow", "simulate", str(trace), f"--json={tmp_path}/x.json"])
    document = simulated(tmp_path, trace, *QUICK, "--seed", 4, "--policy", "cost")
    assert document["command"] == "kvflow simulate react.jsonl.gz --json=x.json"
    assert document["traces"][0]["name"] == "react.jsonl.gz"
    assert str(trace.parent) not in json.dumps(document)
    assert str(tmp_path) not in json.dumps(document)


def test_lru_and_belady_come_along_as_references(trace: Path, tmp_path: Path) -> None:
    document = simulated(tmp_path, trace, *QUICK, "--policy", "cost", "--seed", 7)
    policies = document["setups"][0]["policies"]
    assert [(each["policy"], each["asked"]) for each in policies] == [("lru", False), ("cost", True), ("belady", False)]
    assert {run["seed"] for run in document["runs"]} == {7}


def test_the_same_command_gives_the_same_numbers(trace: Path, tmp_path: Path) -> None:
    first, second = (
        simulated(tmp_path, trace, *QUICK, "--policy", "steps", "--seeds", 2, "--host-tokens", "50%") for _ in range(2)
    )
    for document in (first, second):
        for run in document["runs"]:
            del run["measures"]["wall_s"], run["measures"]["calls_per_min"]
    assert first["runs"] == second["runs"]


def test_a_sweep_is_a_grid(trace: Path, tmp_path: Path) -> None:
    document = simulated(
        tmp_path, trace, "--jobs", 1, "--sweep", "--policy", "lru", "--seeds", 1,
        "--concurrency", 2, "--concurrency", 3, "--host-tokens", "none,100%",
    )  # fmt: skip
    found = [(each["concurrency"], each["host_size"], each["device_size"]) for each in document["setups"]]
    sizes = ("30%", "50%", "70%")
    assert found == [(load, host, size) for load in (2, 3) for host in ("none", "100%") for size in sizes]


def test_sizes_can_be_listed_and_given_in_tokens(trace: Path, tmp_path: Path) -> None:
    document = simulated(
        tmp_path, trace, *QUICK, "--policy", "lru", "--seeds", 1, "--limit", 4,
        "--device-tokens", "9k,12000", "--device-tokens", "0.02M", "--host-tokens", "20k", "--storage-tokens", "40k",
    )  # fmt: skip
    assert [each["device_tokens"] for each in document["setups"]] == [9000, 12_000, 20_000]
    assert {(each["host_tokens"], each["storage_tokens"]) for each in document["setups"]} == {(20_000, 40_000)}
    assert {run["measures"]["programs"] for run in document["runs"]} == {4}


def test_short_traces_can_be_played_more_than_once(trace: Path, tmp_path: Path) -> None:
    options = (*QUICK, "--policy", "lru", "--seeds", 1)
    once, twice = (simulated(tmp_path, trace, *options, "--repeat", times) for times in (1, 2))
    assert (once["times"], twice["times"]) == (1, 2)
    assert twice["programs"] == 2 * once["programs"]
    (first, *_), (second, *_) = once["runs"], twice["runs"]
    assert second["measures"]["programs"] == 2 * first["measures"]["programs"]
    assert second["measures"]["prompt_tokens"] == 2 * first["measures"]["prompt_tokens"]


def test_requests_that_do_not_fit_are_told_of(trace: Path, tmp_path: Path) -> None:
    done = call(trace, *QUICK, "--policy", "lru", "--seeds", 1, "--device-tokens", 4500)
    assert done.exit_code == 0, done.output
    assert "requests do not fit (the longest has" in done.output
    assert "calls rejected" in done.output


def test_bad_rows_are_counted_and_shown(trace: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    write_trace(bad, *synthetic_trace("chain", SynthOptions(workflows=3, turns=1)))
    lines = len(bad.read_text().splitlines())
    bad.write_text(bad.read_text() + "{nonsense\n" * 12)
    done = call(trace, bad, *QUICK, "--policy", "lru", "--seeds", 1)
    assert done.exit_code == 0, done.output
    assert "12 rows could not be used" in done.output
    assert f"left out: {bad}:{lines + 1}: " in done.stderr
    assert "... and 2 more rows" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--policy", "nope"], "does not exist"),
        (["--profile", "b200"], "neither a file nor one of"),
        (["--admission", "lifo"], "choose one of fcfs"),
        (["--device-tokens", "50x"], "is no size"),
        (["--device-tokens", "none"], "holds no request"),
        (["--device-tokens", "-5"], "is no size"),
        (["--storage-tokens", "50%"], "needs a host tier"),
        (["--seed", "1", "--seeds", "2"], "either --seed or --seeds"),
        (["--concurrency", "0"], "--concurrency"),
        (["--json", "/nowhere/at/all.json"], "there is no folder"),
    ],
)
def test_mistakes_are_told_as_usage_errors(arguments: list[str], problem: str, trace: Path) -> None:
    done = call(trace, *arguments)
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.replace("│", " ").split())


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    assert call(tmp_path / "none.jsonl").exit_code == 2
    (tmp_path / "odd.jsonl").write_text('{"question": 1}\n')
    done = call(tmp_path / "odd.jsonl")
    assert done.exit_code == 2
    assert "of no known format" in " ".join(done.stderr.replace("│", " ").split())


def test_a_file_that_cannot_be_written_ends_in_an_error(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    assert call(trace, *QUICK, "--html", tmp_path / "folder.html").exit_code == 2
