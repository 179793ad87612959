"""Whole evaluations, on traces whose best possible scores are known."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvflow.cli import app
from kvflow.predict.evaluate import evaluate
from kvflow.predict.trials.uses import UseTrial
from kvflow.trace import (
    Event,
    Join,
    LLMCall,
    Piece,
    Prompt,
    Spawn,
    ToolEnd,
    ToolStart,
    TraceHeader,
    WorkflowEnd,
    WorkflowStart,
    write_trace,
)

MEDIANS_S = {"ls": 0.02, "grep": 0.1, "pytest": 8.0, "pip": 3.0}
PROMPT = Prompt(add=(Piece("text", 100),))


def call(workflow: str, name: int, agent: str = "coder", **more) -> LLMCall:
    times = {"delay_s": 0.0, "llm_s": 1.0} | more
    return LLMCall(workflow=workflow, agent=agent, call=f"c{name}", prompt=PROMPT, output="o", output_tokens=9, **times)


def coder(workflow: str, chance: random.Random, turns: int) -> Iterator[Event]:
    """A ReAct loop whose last answer calls no tool."""
    yield WorkflowStart(workflow=workflow, type="coder")
    for turn in range(turns):
        yield call(workflow, turn)
        if turn == turns - 1:
            break
        verbs = [chance.choice(list(MEDIANS_S)) for _ in range(chance.choice([1, 1, 2]))]
        for number, verb in enumerate(verbs):
            yield ToolStart(workflow=workflow, agent="coder", tool_call=f"t{turn}.{number}", tool="bash", verb=verb)
        for number, verb in enumerate(verbs):
            seconds = chance.lognormvariate(math.log(MEDIANS_S[verb]), 0.5)
            yield ToolEnd(workflow=workflow, tool_call=f"t{turn}.{number}", seconds=seconds)
    yield WorkflowEnd(workflow=workflow)


def review(workflow: str, chance: random.Random) -> Iterator[Event]:
    """Plan, then write and criticize three times on average; the planner comes back once at the end."""
    yield WorkflowStart(workflow=workflow, type="review")
    agents = ["planner"]
    while len(agents) < 3 or chance.random() < 2 / 3:
        agents += ["writer", "critic"]
    for number, agent in enumerate([*agents, "planner"]):
        yield call(workflow, number, agent, delay_s=0.5, llm_s=chance.gauss(4, 0.5))
    yield WorkflowEnd(workflow=workflow)


@pytest.fixture
def chance() -> random.Random:
    return random.Random(12)


def test_tool_durations(chance):
    events = [event for n in range(40) for event in coder(f"w{n}", chance, chance.randint(5, 30))]
    tools = evaluate(events).tools
    assert tools is not None
    assert tools.left_out is not None
    assert tools.calls == sum(isinstance(event, ToolEnd) for event in events)
    assert tools.by_tool_auc[2.0] == pytest.approx(0.5, abs=0.1) or (tools.by_tool_auc[2.0] or 1) < 0.5
    for scores in (tools.online, tools.left_out):
        assert (scores.auc[2.0] or 0) > 0.95
        assert (scores.log_loss[2.0] or 9) < 0.25
        assert scores.error_factor == pytest.approx(1.4, abs=0.15)  # e^(0.5 * 0.67)
        for share, covered in scores.coverage.items():
            assert covered == pytest.approx(share, abs=0.06)
    assert tools.by_verb_auc[2.0] == pytest.approx(tools.left_out.auc[2.0], abs=0.03)


def test_the_next_use_of_a_coder(chance):
    events = [event for n in range(60) for event in coder(f"w{n}", chance, chance.randint(5, 30))]
    evaluation = evaluate(events)
    assert evaluation.agents is None  # there is only one
    assert evaluation.again is not None
    assert evaluation.again.uses == evaluation.llm_calls
    tools, pauses = evaluation.uses["tools"], evaluation.uses["pause"]
    assert tools.used == 1
    assert pauses.used == 0
    assert pauses.forecasts == 60
    assert (tools.brier or 0) < 0.001
    assert (pauses.brier or 1) < 0.15  # it was the last use: the first few have to be learned from
    assert tools.covered == pytest.approx(0.85, abs=0.07)
    assert tools.below_median == pytest.approx(0.5, abs=0.07)
    assert (tools.auc[2.0] or 0) > 0.9
    assert evaluation.uses["all"].forecasts == tools.forecasts + pauses.forecasts == evaluation.llm_calls
    assert (evaluation.uses["all"].auc[60.0] or 0) > 0.95  # used soon, or never


def test_several_agents(chance):
    events = [event for n in range(150) for event in review(f"w{n}", chance)]
    evaluation = evaluate(events)
    agents, again = evaluation.agents, evaluation.again
    assert agents is not None
    assert again is not None
    assert agents.orders[1].accuracy > agents.orders[0].accuracy + 0.2
    assert agents.orders[2].accuracy > 0.8  # after the critic, a third of the cases go the other way
    assert agents.orders[2].log_loss < agents.orders[1].log_loss < agents.orders[0].log_loss
    assert agents.unseen == 4  # three agents and the end
    assert (again.brier or 1) < again.base_brier * 0.85
    ahead = evaluation.uses["ahead"]
    assert ahead.covered == pytest.approx(0.88, abs=0.1)  # times take few values, and intervals hold whole bins
    assert ahead.below_median == pytest.approx(0.5, abs=0.2)


def times_s(events: list[Event]) -> Counter[float | None]:
    """How long after their forecasts contexts were used again; None if they were not."""
    trial = UseTrial()
    for event in events:
        trial.take(event)
    trial.finish()
    return Counter(case.after_s for case in trial._cases)


def test_time_is_reckoned_by_thread():
    """A sub-agent of 30 s: the parent's context is used again when it has been joined, and is not used soon."""
    events: list[Event] = []
    for n in range(40):
        w = f"w{n}"
        events += [WorkflowStart(workflow=w, type="t"), call(w, 0, "boss"), Spawn(workflow=w, child="sub")]
        events += [call(w, each, "helper", thread="sub", llm_s=10.0) for each in (1, 2, 3)]
        events += [Join(workflow=w, child="sub"), call(w, 4, "boss"), WorkflowEnd(workflow=w)]
    alone = [event for event in events if not (isinstance(event, LLMCall) and event.thread == "sub")]
    assert times_s(events) == {0.0: 80, 30.0: 40, None: 80}
    assert times_s(alone) == {0.0: 40, None: 40}


def test_unknown_times_are_left_out(chance):
    events: list[Event] = []
    for n in range(30):
        w = f"w{n}"
        events += [WorkflowStart(workflow=w, type="t")]
        for turn in range(4):
            events += [call(w, turn, delay_s=None, llm_s=None)]
            events += [ToolStart(workflow=w, agent="coder", tool_call=f"t{turn}", tool="bash")]
            events += [ToolEnd(workflow=w, tool_call=f"t{turn}")]
        events += [WorkflowEnd(workflow=w)]
    evaluation = evaluate(events)
    assert evaluation.tools is None
    tools = evaluation.uses["tools"]
    assert (tools.forecasts, tools.timed, tools.covered) == (120, 0, None)
    assert tools.used == 0.75
    assert evaluation.again is not None
    assert (evaluation.again.brier or 1) < 0.1


def test_a_workflow_that_does_not_end_leaves_its_last_use_open():
    events: list[Event] = [WorkflowStart(workflow="w", type="t"), *(call("w", n) for n in range(5))]
    again = evaluate(events).again
    assert again is not None
    assert (again.uses, again.share) == (4, 1.0)


def test_events_that_do_not_fit_are_left_out():
    stray = [call("nobody", 1), ToolEnd(workflow="w", tool_call="t", seconds=1.0), WorkflowEnd(workflow="other")]
    events = [*stray, WorkflowStart(workflow="w", type="t"), *stray[1:], Join(workflow="w", child="none")]
    evaluation = evaluate([*events, WorkflowEnd(workflow="w"), *stray])
    assert (evaluation.tools, evaluation.agents, evaluation.again, evaluation.uses) == (None, None, None, {})
    assert evaluate([]).workflows == 0


def test_no_prediction_sees_what_it_predicts(chance):
    """Nothing can be known of coin tosses; a leak would show."""
    events: list[Event] = []
    for n in range(300):
        w, tool = f"w{n}", chance.choice(["a", "b"])
        events += [WorkflowStart(workflow=w, type="t"), call(w, 0)]
        events += [ToolStart(workflow=w, agent="coder", tool_call="x", tool=tool)]
        events += [ToolEnd(workflow=w, tool_call="x", seconds=chance.choice([0.1, 5.0]))]
        events += [call(w, 1 + turn) for turn in range(chance.choice([1, 2]))] + [WorkflowEnd(workflow=w)]
    evaluation = evaluate(events)
    assert evaluation.tools is not None
    assert evaluation.tools.left_out is not None
    assert evaluation.tools.online.auc[2.0] == pytest.approx(0.5, abs=0.1)
    assert evaluation.tools.left_out.auc[2.0] == pytest.approx(0.5, abs=0.12)
    assert (evaluation.tools.online.log_loss[2.0] or 0) > 0.66


def test_no_call_is_predicted_from_its_own_workflow(chance):
    """Two parallel calls take equally long, under a verb no other workflow has: whoever peeks knows everything."""
    events: list[Event] = []
    for n in range(200):
        w, seconds = f"w{n}", chance.choice([0.1, 5.0])
        events += [WorkflowStart(workflow=w, type="t"), call(w, 0)]
        for each in "xy":
            events += [ToolStart(workflow=w, agent="coder", tool_call=each, tool="bash", verb=f"v{n}")]
        events += [ToolEnd(workflow=w, tool_call=each, seconds=seconds) for each in "xy"]
        events += [call(w, 1), WorkflowEnd(workflow=w)]
    tools = evaluate(events).tools
    assert tools is not None
    assert tools.left_out is not None
    for auc in (tools.online.auc, tools.left_out.auc, tools.by_verb_auc):
        assert (auc[2.0] or 1) < 0.6


def test_parallel_tools_take_as_long_as_the_longest():
    events: list[Event] = []
    for n in range(30):
        w = f"w{n}"
        events += [WorkflowStart(workflow=w, type="t"), call(w, 0)]
        for each in "xyz":
            events += [ToolStart(workflow=w, agent="coder", tool_call=each, tool="bash")]
        events += [ToolEnd(workflow=w, tool_call=each, seconds=5.0) for each in "xyz"]
        events += [call(w, 1), WorkflowEnd(workflow=w)]
    assert (evaluate(events).uses["tools"].covered or 0) > 0.9


def test_pauses_are_learned_apart_from_tools():
    """Ten quick tools, then the user thinks for a minute."""
    events: list[Event] = [WorkflowStart(workflow="w", type="t")]
    for n in range(400):
        events += [call("w", n, delay_s=60.0 if n % 11 == 0 else 0.0)]
        if n % 11 != 10:
            events += [ToolStart(workflow="w", agent="coder", tool_call=f"t{n}", tool="bash")]
            events += [ToolEnd(workflow="w", tool_call=f"t{n}", seconds=0.13)]
    uses = evaluate(events).uses
    assert (uses["pause"].covered or 0) > 0.8
    assert (uses["pause"].brier or 1) < 0.05
    assert (uses["tools"].covered or 0) > 0.95


@pytest.fixture
def trace(tmp_path: Path, chance: random.Random) -> Path:
    path = tmp_path / "trace.jsonl.gz"
    events = [event for n in range(10) for event in coder(f"w{n}", chance, 8)]
    write_trace(path, TraceHeader(source="test"), [*events, *review("r", chance)])
    return path


def test_the_command_shows_tables(trace):
    done = CliRunner().invoke(app, ["predict", "eval", str(trace)])
    assert done.exit_code == 0, done.output
    for title in ("Tool durations", "Next agent", "Used again", "Time of the next use"):
        assert title in done.output


def test_the_command_gives_json(trace):
    done = CliRunner().invoke(app, ["predict", "eval", str(trace), str(trace), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [each["source"] for each in report] == ["test", "test"]
    assert report[0]["tools"] == report[1]["tools"]  # nothing is carried over
    assert report[0]["tools"]["online"]["auc"]["2.0"] > 0.5


def test_the_command_says_what_is_wrong(tmp_path):
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["predict", "eval", str(tmp_path / "none.jsonl")])
    assert done.exit_code == 2
    assert "none.jsonl" in done.output
