"""Comparisons of policies: sizes, intervals, the gap, and that nothing but plan and programs decides the numbers."""

from __future__ import annotations

import json
import math
import multiprocessing
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from kvflow.errors import ConfigError, TraceError
from kvflow.report.simulation_record import Simulation
from kvflow.sim import compare as comparing
from kvflow.sim import load_profile
from kvflow.sim.compare import Plan, Run, Setup, compare, grid
from kvflow.sim.measures import quantile
from kvflow.sim.summary import Estimate, document, estimate, gap_note, relative, summarize, t_95
from kvflow.sim.workload import Size, Workload, parse_size, read_workload
from kvflow.trace import (
    LLMCall,
    Piece,
    Program,
    Prompt,
    ToolEnd,
    ToolStart,
    TraceHeader,
    WorkflowEnd,
    WorkflowStart,
    write_trace,
)

FIXED_TOKENS, TURN_TOKENS = 2048, 1024
REAL_TIME = {"wall_s", "calls_per_min"}


def program(name: str, turns: int) -> Program:
    """One agent whose context grows with every turn, tools of different lengths between."""
    events: list = []
    for turn in range(turns):
        added = (Piece(f"{name}/{turn}", TURN_TOKENS),)
        prompt = (
            Prompt(base=f"c{turn - 1}", keep_tokens=FIXED_TOKENS + turn * (TURN_TOKENS + 64), add=added)
            if turn
            else Prompt(add=(Piece("fixed", FIXED_TOKENS), *added))
        )
        events.append(
            LLMCall(
                workflow=name,
                agent="coder",
                call=f"c{turn}",
                prompt=prompt,
                output=f"{name}/out{turn}",
                output_tokens=64,
                fixed_tokens=FIXED_TOKENS,
            )
        )
        seconds = 0.5 if turn % 2 else 8.0
        events.append(ToolStart(workflow=name, agent="coder", tool_call=f"t{turn}", tool="bash"))
        events.append(ToolEnd(workflow=name, tool_call=f"t{turn}", seconds=seconds if turn % 3 else None))
    return Program(start=WorkflowStart(workflow=name, type="coder"), threads={"main": events}, ended=True)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload([program(f"w{number}", 3 + number % 5) for number in range(10)])


@pytest.fixture(scope="module")
def plan(workload: Workload) -> Plan:
    setups = grid(
        workload,
        devices=[parse_size("40%"), parse_size("70%")],
        hosts=[parse_size("none"), parse_size("100%")],
        storages=[parse_size("0")],
        concurrencies=[4],
    )
    return Plan(profile=load_profile("h200"), setups=setups, policies=("lru", "cost"), seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def runs(plan: Plan, workload: Workload) -> list[Run]:
    return compare(plan, workload)


def timeless(runs: list[Run]) -> list[dict]:
    """Runs without real time."""
    plain = [asdict(run) for run in runs]
    for run in plain:
        run["measures"] = {name: value for name, value in run["measures"].items() if name not in REAL_TIME}
    return plain


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("400000", 400_000), ("400k", 400_000), ("1.5M", 1_500_000), ("1.001k", 1001), ("0", 0), ("none", 0),
        (" None ", 0), ("50%", 500), ("12.5%", 125), ("200 %", 2000), ("1_000", 1000), ("2K", 2000),
    ],
)  # fmt: skip
def test_sizes_are_tokens_or_shares(text: str, tokens: int) -> None:
    assert parse_size(text).resolve(1000.0) == tokens


@pytest.mark.parametrize("text", ["", "50x", "-1", "1.5", "%", "1e6", "nan", "inf", "٣", "k", "1.0005k"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size"):
        parse_size(text)


def test_shares_are_of_the_contexts_that_live_at_a_time(workload: Workload) -> None:
    longest = [FIXED_TOKENS + (3 + number % 5) * (TURN_TOKENS + 64) for number in range(10)]
    assert workload.context_tokens == sum(longest) / 10
    assert workload.live_tokens(4) == 4 * workload.context_tokens
    assert workload.live_tokens(100) == 10 * workload.context_tokens, "no more than there are"
    assert workload.live_tokens(4, limit=2) == 2 * workload.context_tokens
    assert workload.request_tokens[-1] == max(longest)
    assert workload.too_long(max(longest)) == 0
    assert workload.too_long(max(longest) - 1) == 2
    assert len(workload.up_to(max(longest) - 1).programs) == 8


def test_a_seed_draws_and_orders_programs(workload: Workload) -> None:
    names = [[each.start.workflow for each in workload.drawn(seed, 6)] for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]
    assert len(set(names[0])) == 6
    assert sorted(each.start.workflow for each in workload.drawn(3)) == [f"w{n}" for n in range(10)]


def test_a_workload_comes_from_files_and_tells_what_was_wrong(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    events = [WorkflowStart(workflow="a", type="t"), *program("a", 2).threads["main"], WorkflowEnd(workflow="a")]
    write_trace(path, TraceHeader(source="test"), [*events, WorkflowEnd(workflow="ghost")])
    path.write_text(path.read_text() + "{broken\n")
    bad: list = []
    found = read_workload([path, path], bad.append)
    assert [(file.name, file.programs, file.calls, file.bad_rows) for file in found.files] == [
        ("trace.jsonl", 1, 2, 2)
    ] * 2
    assert len(found.programs) == 2
    assert [str(each) for each in bad[:2]] == [f"{path}:11: {bad[0].problem}", f"workflow ghost: {bad[1].problem}"]
    silent = [WorkflowStart(workflow="b", type="t"), WorkflowEnd(workflow="b")]
    write_trace(path, TraceHeader(source="test"), [*silent, *events])
    assert [program.start.workflow for program in read_workload([path]).programs] == ["a"]
    write_trace(path, TraceHeader(source="test"), silent)
    with pytest.raises(TraceError, match="no LLM call"):
        read_workload([path])


def test_runs_come_in_order_and_twice_the_same(plan: Plan, workload: Workload, runs: list[Run]) -> None:
    assert [(run.setup, run.policy, run.seed) for run in runs] == [
        (setup, policy, seed) for setup in range(4) for policy in ("lru", "cost", "belady") for seed in (0, 1, 2)
    ]
    assert timeless(compare(plan, workload)) == timeless(runs)


def test_processes_give_what_one_process_gives(plan: Plan, workload: Workload, runs: list[Run]) -> None:
    seen: list[tuple[int, int]] = []
    side_by_side = compare(plan, workload, jobs=2, on_progress=lambda done, calls: seen.append((done, calls)))
    assert timeless(side_by_side) == timeless(runs)
    assert [done for done, _ in seen] == list(range(1, plan.simulations + 1))
    assert seen[-1][1] == len(workload.request_tokens) * plan.simulations


def test_an_interrupt_ends_the_simulations_that_run(
    plan: Plan, workload: Workload, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(plan: Plan, workload: Workload, task: tuple[int, str, int]) -> Run:
        if task[2]:
            time.sleep(60)
        return runs[0]

    def interrupt(runs: int, calls: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "_simulated", simulated)  # forked processes have it, too
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compare(plan, workload, jobs=3, on_progress=interrupt)
    assert time.monotonic() - began_s < 40
    assert not multiprocessing.active_children()


def test_what_is_fetched_from_storage_is_time_lost(workload: Workload) -> None:
    def measured(storage_tokens: int) -> dict[str, float]:
        setup = Setup(device_tokens=12_000, host_tokens=12_000, storage_tokens=storage_tokens, concurrency=3)
        return dict(compare(Plan(profile=load_profile("h200"), setups=[setup]), workload)[0].measures)

    assert "fetched_s" not in measured(0)
    found = measured(100_000)
    assert found["fetched_s"] > 0
    assert found["lost_s"] == pytest.approx(found["recomputed_s"] + found["reloaded_s"] + found["fetched_s"])


def test_progress_in_one_process_counts_calls(workload: Workload) -> None:
    seen: list[tuple[int, int]] = []
    setups = [Setup(device_tokens=100_000)]
    compare(Plan(profile=load_profile("h200"), setups=setups), workload, on_progress=lambda *done: seen.append(done))
    assert seen[-1] == (6, 6 * len(workload.request_tokens))
    assert seen == sorted(seen)


def test_the_numbers_add_up(workload: Workload, runs: list[Run]) -> None:
    for run in runs:
        measures = run.measures
        assert measures["lost_s"] == pytest.approx(measures["recomputed_s"] + measures["reloaded_s"])
        assert measures["calls"] == len(workload.request_tokens)
        assert measures["programs"] == len(workload.programs)
        assert measures["ttft_p50_s"] <= measures["ttft_p95_s"] <= measures["ttft_p99_s"]
        assert ("guard_share" in measures) == (run.policy == "cost")
    assert all(run.measures["reloaded_s"] == 0 for run in runs if run.setup in (0, 1))
    assert any(run.measures["reloaded_s"] > 0 for run in runs if run.setup in (2, 3))
    lost_s = [sum(run.measures["lost_s"] for run in runs if run.setup == setup) for setup in range(4)]
    assert lost_s[0] > lost_s[1] > 0
    assert lost_s[0] > lost_s[2]


def test_without_the_guard_there_is_none(workload: Workload) -> None:
    setups = [Setup(device_tokens=20_000, concurrency=4)]
    plan = Plan(profile=load_profile("h200"), setups=setups, policies=["cost"], guard=False)
    assert all("guard_share" not in run.measures for run in compare(plan, workload))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"policies": ("lru", "nope")}, "'nope' does not exist"),
        ({"admission": "lifo"}, "admission 'lifo'"),
        ({"setups": []}, "nothing to simulate"),
        ({"seeds": ()}, "nothing to simulate"),
        ({"setups": [Setup(device_tokens=3000)]}, "holds no request"),
        ({"setups": [Setup(device_tokens=9000, concurrency=0)]}, "at least one program"),
        ({"setups": [Setup(device_tokens=9000, storage_tokens=9000)]}, "needs a host tier"),
    ],
)
def test_what_cannot_be_simulated_is_refused(change: dict, problem: str, workload: Workload) -> None:
    settings = {"profile": load_profile("h200"), "setups": [Setup(device_tokens=9000)]} | change
    with pytest.raises(ConfigError, match=problem):
        compare(Plan(**settings), workload)


def test_t_quantiles_are_those_of_the_books() -> None:
    for freedom, quantile_975 in {1: 12.706, 4: 2.776, 30: 2.042, 31: 2.0395, 60: 2.0003, 1000: 1.9623}.items():
        assert t_95(freedom) == pytest.approx(quantile_975, abs=5e-4)


def test_intervals() -> None:
    assert estimate([3.0]) == Estimate(mean=3.0)
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high is not None
    assert found.high - 2.0 == pytest.approx(4.303 / math.sqrt(3))
    paired = relative([90.0, 180.0, 270.0], [100.0, 200.0, 300.0])
    assert paired is not None
    assert paired.mean == pytest.approx(0.9)
    assert relative([1.0], [2.0]) == Estimate(mean=0.5)
    assert relative([1.0, 1.0], [0.0, 0.0]) is None
    assert [quantile([1.0, 2.0, 4.0], share) for share in (0, 0.5, 0.75, 1)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("ideal", "note"),
    [
        (None, "loses nothing"),
        (Estimate(mean=0.99), "noise"),
        (Estimate(mean=1.01), "1.0% more"),
        (Estimate(mean=0.7, low=0.3, high=1.1, n=3), "over these 3 seeds that may be chance"),
        (Estimate(mean=1.3, low=1.2, high=1.4, n=3), "not when the server will let them"),
        (Estimate(mean=0.7, low=0.6, high=0.8, n=3), ""),
        (Estimate(mean=0.7), ""),
    ],
)
def test_a_gap_is_only_one_if_it_is_worth_the_name(ideal: Estimate | None, note: str) -> None:
    assert note in gap_note(ideal)
    assert bool(gap_note(ideal)) == bool(note)


def test_the_gap_closed_is_of_the_means() -> None:
    lost_s = {"lru": [10.0, 12.0], "cost": [7.0, 9.0], "belady": [6.0, 8.0]}
    runs = [
        Run(setup=0, policy=policy, seed=seed, measures={"lost_s": value}, evicted_tokens={"device/tail": 10 * seed})
        for policy, values in lost_s.items()
        for seed, value in enumerate(values)
    ]
    plan = Plan(profile=load_profile("h200"), setups=[Setup(device_tokens=1)], policies=["cost"], seeds=(0, 1))
    summary = summarize(plan, runs)[0]
    assert [policy["gap_closed"] for policy in summary["policies"]] == [0, 0.75, 1]
    assert [policy["asked"] for policy in summary["policies"]] == [False, True, False]
    assert [policy["oracle"] for policy in summary["policies"]] == [False, False, True]
    assert summary["policies"][0]["evicted_tokens"] == {"device/tail": 5}
    assert summary["policies"][1]["relative"]["lost_s"]["mean"] == pytest.approx(8 / 11)


def test_the_document_survives_json_and_its_reader(plan: Plan, workload: Workload, runs: list[Run]) -> None:
    made = document(plan, workload, runs)
    read = json.loads(json.dumps(made, allow_nan=False))
    assert read == json.loads(json.dumps(read))
    record = Simulation.read(read)
    assert record == Simulation.read(made)
    assert record.policies == ("lru", "cost", "belady")
    assert [setup.device_tokens for setup in record.setups] == [setup.device_tokens for setup in plan.setups]
    assert record.seeds == 3
    assert list(record.by_load()) == ["4 programs at a time, no host tier", record.setups[2].load]
    first = record.setups[0].policy("cost")
    assert first is not None
    assert first.measures["lost_s"].mean == made["setups"][0]["policies"][1]["measures"]["lost_s"]["mean"]


def test_sizes_that_come_to_the_same_are_simulated_once(workload: Workload) -> None:
    none = [Size("none", tokens=0), Size("none", tokens=0)]
    assert len(grid(workload, devices=[parse_size("9k")], hosts=none, storages=none, concurrencies=[2])) == 1
