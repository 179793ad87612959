from __future__ import annotations

import random
from itertools import count, pairwise

import pytest

from kvflow.graph import END, MAX_AGENTS, START, AgentStepGraph, Join, TransitionLearner
from kvflow.graph.learn import MAX_LIVE_RUNS
from kvflow.graph.spans import MAX_SPANS, Run

_numbers = map(str, count())


def observe(learner: TransitionLearner, script: str, *, finish: bool = True) -> None:
    """Play one run, e.g. ``"p -p x y -x -y"``: p starts and ends, then x and y overlap."""
    workflow_id = next(_numbers)
    for word in script.split():
        agent, _, step_id = word.lstrip("-").partition("#")
        take = learner.end if word.startswith("-") else learner.start
        take(workflow_id, agent, step_id or None)
    (learner.finish if finish else learner.forget)(workflow_id)


def learned(*scripts: str) -> AgentStepGraph:
    learner = TransitionLearner("t")
    for script in scripts:
        observe(learner, script)
    graph = learner.graph()
    assert graph is not None
    graph.validate()
    return graph


def test_nothing_is_known_before_a_run_is_over():
    learner = TransitionLearner()
    learner.start("w", "a")
    assert learner.graph() is None
    learner.forget("w")
    graph = learner.graph()
    assert graph is not None
    assert graph.edges == ((START, "a"),)
    learner.finish("unknown")
    learner.end("unknown", "a")
    learner.forget("unknown")


def test_until_a_run_is_over_the_longest_that_goes_on_is_gone_by():
    learner = TransitionLearner("t")
    for agent in "abcabc":
        learner.start("w", agent)
    learner.start("v", "x")
    learner.start("v", "y")
    assert learner.graph() == AgentStepGraph("t").chain(START, "a", "b", "c", "a")
    observe(learner, "a c")
    assert learner.graph() == AgentStepGraph("t").chain(START, "a", "c", END), "a run that is over says more"


def test_looking_at_a_run_that_goes_on_takes_as_long_as_the_run(monkeypatch):
    looked_at = []
    visits = Run.visits
    monkeypatch.setattr(Run, "visits", lambda run, **how: looked_at.append(len(run)) or visits(run, **how))
    learner = TransitionLearner("t")
    for number in range(1000):
        learner.start("w", f"a{number % 7}")
    assert sum(looked_at) <= 6 * 1000


@pytest.mark.parametrize("script", ["a b c", "a -a b -b c -c", "a#1 a#1 b#2 b#2 b#2 c#3"])
def test_a_chain(script):
    assert learned(script, script) == AgentStepGraph("t").chain(START, "a", "b", "c", END)


def test_a_branch_70_to_30():
    graph = learned(*["a b", "a b", "a c", "a b", "a b", "a c", "a b", "a b", "a c", "a b"] * 5)
    assert graph.probability("a", "b") == pytest.approx(0.7, abs=0.04)
    assert graph.probability("a", "c") == pytest.approx(0.3, abs=0.04)
    assert graph.probability("b", END) is None


def test_a_rare_alternative_is_no_fan_out():
    graph = learned(*["a b"] * 30, "a c", *["a b"] * 5)
    assert graph.probability("a", "b") == pytest.approx(0.95, abs=0.04)
    assert graph.probability("a", "c") == pytest.approx(0.05, abs=0.04)


@pytest.mark.parametrize(
    "scripts",
    [
        ("p -p x y -x -y j -j", "p -p y x -x -y j -j"),
        ("p#1 x#2 y#3 x#2 y#3 j#4", "p#1 y#3 x#2 y#3 x#2 j#4"),
        ("p -p x -x y -y j", "p -p y x -y -x j", *["p -p x y -x -y j"] * 45),
    ],
    ids=["with end facts", "interleaved requests", "after a run that looked sequential"],
)
def test_fan_out_and_join(scripts):
    graph = learned(*scripts)
    for name in "xy":
        assert graph.probability("p", name) is None
        assert graph.probability(name, "j") is None
    assert graph.join("j") is Join.ALL
    assert graph.join("x") is Join.ANY


def test_fan_out_of_chains():
    graph = learned("p -p x y -x x2 -y y2 -x2 -y2 j -j")
    assert set(graph.edges) == {
        (START, "p"),
        ("p", "x"),
        ("p", "y"),
        ("x", "x2"),
        ("y", "y2"),
        ("x2", "j"),
        ("y2", "j"),
        ("j", END),
    }
    assert graph.join("j") is Join.ALL


def test_parallel_steps_of_one_agent_are_one_follower():
    graph = learned("p -p m#1 m#2 m#3 -m#2 -m#1 -m#3 r -r")
    assert set(graph.edges) == {(START, "p"), ("p", "m"), ("m", "r"), ("r", END)}
    assert graph.join("r") is Join.ANY


def test_a_loop():
    graph = learned(*["a b a b a b"] * 3)
    assert graph.probability("a", "b") is None
    assert graph.probability("b", "a") == pytest.approx(2 / 3)
    assert graph.probability("b", END) == pytest.approx(1 / 3)


@pytest.mark.parametrize("script", ["r r r r r", "r -r r -r r -r r -r r -r", "r#1 r#2 r#3 r#4 r#5"])
def test_a_react_self_loop(script):
    graph = learned(script)
    assert graph.probability("r", "r") == pytest.approx(0.8)
    assert graph.probability("r", END) == pytest.approx(0.2)


def test_all_runs_fade_and_the_recent_ones_count():
    learner = TransitionLearner(half_life_runs=2)
    for script in ["a b"] * 10 + ["a c"] * 20:
        observe(learner, script)
    graph = learner.graph()
    assert graph is not None
    assert "b" not in graph
    assert graph.probability("a", "c") is None


def test_an_agent_that_many_parallel_steps_led_to_once_fades_with_the_edges_into_it():
    learner = TransitionLearner("t")
    workers = " ".join(f"worker#{number}" for number in range(8))
    observe(learner, f"{workers} -worker#0 reducer")
    for _ in range(110):
        observe(learner, workers)
        graph = learner.graph()
        assert graph is not None
        graph.validate()
    assert graph.agents == ("worker",)


def test_the_same_graph_is_returned_until_it_has_changed_materially():
    learner = TransitionLearner()
    observe(learner, "a b")
    graph = learner.graph()
    observe(learner, "a b")
    assert learner.graph() is graph
    observe(learner, "a c")
    assert learner.graph() is not graph


def test_unfinished_runs_say_nothing_about_the_end():
    learner = TransitionLearner()
    for _ in range(3):
        observe(learner, "a b c", finish=False)
    graph = learner.graph()
    assert graph is not None
    assert set(graph.edges) == {(START, "a"), ("a", "b"), ("b", "c")}
    graph.validate()


def test_unusable_names_are_ignored():
    learner = TransitionLearner()
    for name in (START, END, "", "x" * 200, "a"):
        learner.start("w", name)
    learner.finish("w")
    graph = learner.graph()
    assert graph is not None
    assert graph.agents == ("a",)


def test_memory_is_bounded():
    learner = TransitionLearner()
    observe(learner, " ".join(f"a{i}" for i in range(300)))
    graph = learner.graph()
    assert graph is not None
    assert len(graph) <= MAX_AGENTS
    observe(learner, " ".join(["a0"] * (MAX_SPANS + 50)))
    for number in range(MAX_LIVE_RUNS + 1):
        learner.start(f"live {number}", "a0")
    assert len(learner._live) == MAX_LIVE_RUNS


def test_a_graph_of_many_agents_is_made_anew_every_few_runs():
    learner, chance = TransitionLearner("t"), random.Random(1)
    agents = [f"a{number}" for number in range(20)]
    made = []
    for run in range(60):
        chance.shuffle(agents)
        for agent in agents:
            learner.start(f"{run}", agent)
            learner.end(f"{run}", agent)
        learner.finish(f"{run}")
        made.append(id(learner.graph()))
    changes = [one != two for one, two in pairwise(made)]
    assert all(changes[:6]), "what is known soon grows by much"
    assert 8 <= sum(changes[20:]) <= 10
