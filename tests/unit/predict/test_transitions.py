from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kvflow.graph import END
from kvflow.predict.trials.look_ahead import first_uses
from kvflow.predict.trials.transitions import MAX_FOLLOWERS, Transitions


def play(transitions: Transitions, agents: Sequence[str], workflow_type: str = "t") -> None:
    for index, agent in enumerate(agents):
        transitions.observe(workflow_type, agents[:index], agent)


def test_before_anything_was_seen():
    assert Transitions().probabilities("t", ("a",)) == {}
    assert first_uses(Transitions(), "t", ("a",)) == {}


def test_a_chain_is_learned_soon():
    transitions = Transitions()
    for _ in range(5):
        play(transitions, ["plan", "code", "test", END])
    assert transitions.probabilities("t", ())["plan"] > 0.9
    assert transitions.probabilities("t", ("plan",))["code"] > 0.9
    assert transitions.probabilities("t", ("plan", "code", "test"))[END] > 0.9


def test_branch_probabilities_converge():
    chance = random.Random(1)
    transitions = Transitions()
    said = []
    for index in range(3000):
        if index > 300 and index % 10 == 0:
            said.append(transitions.probabilities("t", ("a",))["b"])
        transitions.observe("t", ("a",), "b" if chance.random() < 0.3 else "c")
    assert sum(said) / len(said) == pytest.approx(0.3, abs=0.03)
    assert all(0.15 < each < 0.45 for each in said)


def test_the_agent_before_the_last_one_counts():
    """x goes back to whoever called it: order 2 knows, order 1 cannot."""
    second, first = Transitions(), Transitions(order=1)
    for _ in range(20):
        for transitions in (second, first):
            play(transitions, ["a", "x", "a", "x", "a", END])
            play(transitions, ["b", "x", "b", "x", "b", END])
    assert second.probabilities("t", ("a", "x"))["a"] > 0.9
    assert second.probabilities("t", ("b", "x"))["a"] < 0.1
    assert first.probabilities("t", ("a", "x"))["a"] == pytest.approx(0.5, abs=0.1)


def test_the_start_is_a_context_of_its_own():
    transitions = Transitions()
    for _ in range(10):
        play(transitions, ["a", "b", "a", "c"])
    assert transitions.probabilities("t", ())["a"] > 0.9
    assert transitions.probabilities("t", ("a",))["b"] > 0.9
    assert transitions.probabilities("t", ("b", "a"))["c"] > 0.9


def test_an_unknown_context_backs_off():
    transitions = Transitions()
    for _ in range(20):
        play(transitions, ["a", "b", "c", "a", "b", "c"])
    assert transitions.probabilities("t", ("never", "b")) == transitions.probabilities("t", ("seen", "b"))
    assert transitions.probabilities("t", ("never", "b"))["c"] > 0.9
    everyone = transitions.probabilities("t", ("never", "seen"))
    assert everyone["a"] == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("history", [(), ("a",), ("a", "b"), ("new",), ("a", "new")])
def test_some_probability_is_left_for_the_unknown(history):
    chance = random.Random(3)
    transitions = Transitions()
    past: list[str] = []
    for _ in range(500):
        agent = chance.choice("abcd")
        transitions.observe("t", past, agent)
        past.append(agent)
    probabilities = transitions.probabilities("t", history)
    assert set(probabilities) == set("abcd")
    assert all(each > 0 for each in probabilities.values())
    assert 0.98 < sum(probabilities.values()) < 1


def test_log_loss_beats_the_shorter_contexts():
    """A hidden order-2 source: longer contexts must pay, and shorter ones must not be lost on the way."""
    chance = random.Random(9)
    models = {order: Transitions(order=order) for order in (0, 1, 2)}
    right = dict.fromkeys(models, 0)
    table = {(x, y): chance.choice("abcde") for x in "abcde" for y in "abcde"}
    past = ["a", "b"]
    for _ in range(3000):
        following = table[past[-2], past[-1]] if chance.random() < 0.8 else chance.choice("abcde")
        for order, model in models.items():
            said = model.probabilities("t", past)
            right[order] += max(said, key=said.__getitem__, default=None) == following
            model.observe("t", past, following)
        past.append(following)
    assert right[2] > 0.75 * 3000
    assert right[2] > right[1] > right[0]


def test_drift_is_followed():
    transitions = Transitions()
    for following in ["b"] * 2000 + ["c"] * 800:
        transitions.observe("t", ("a",), following)
    probabilities = transitions.probabilities("t", ("a",))
    assert probabilities["c"] > 0.8
    assert probabilities["b"] < 0.2


def test_types_are_apart():
    transitions = Transitions()
    play(transitions, ["a", "b"], "one")
    assert transitions.probabilities("other", ("a",)) == {}


def test_counting_goes_on_for_ever():
    transitions = Transitions()
    for index in range(100_000):
        transitions.observe("t", ("a",), "c" if index % 10 == 0 else "b")
    assert transitions.probabilities("t", ("a",))["b"] == pytest.approx(0.9, abs=0.03)
    assert sum(transitions.probabilities("t", ("a",)).values()) < 1


def test_memory_is_bounded():
    transitions = Transitions(max_contexts=30)
    for index in range(500):
        play(transitions, [f"agent{index}", "x"])
        play(transitions, ["often", "used"])
    assert len(transitions) == 30
    assert transitions.probabilities("t", ("often",))["used"] > 0.9


def test_followers_are_bounded_and_the_frequent_ones_stay():
    transitions = Transitions()
    for index in range(300):
        transitions.observe("t", ("a",), "often")
        transitions.observe("t", ("a",), f"agent{index}")
    probabilities = transitions.probabilities("t", ("a",))
    assert len(probabilities) <= MAX_FOLLOWERS
    assert probabilities["often"] > 0.6
    assert 0 < sum(probabilities.values()) < 1


@pytest.mark.parametrize(
    ("workflow_type", "history", "nxt"),
    [("", (), "a"), ("t", (), ""), ("t", ("",), "a"), ("t", (), "a" * 129), ("t", ("a" * 129,), "a")],
)
def test_names_that_are_none_are_ignored(workflow_type, history, nxt):
    transitions = Transitions()
    transitions.observe(workflow_type, history, nxt)
    assert len(transitions) == 0
    assert transitions.probabilities(workflow_type, history) == {}


def test_the_order_is_not_negative():
    with pytest.raises(ValueError, match="order"):
        Transitions(order=-1)


def test_looking_ahead_along_a_loop():
    transitions = Transitions()
    for _ in range(50):
        play(transitions, ["a", "b", "c", "a", "b", "c", "a", "b", "c", END])
    uses = first_uses(transitions, "t", ("a", "b", "c", "a"))
    for agent, steps in [("b", 1), ("c", 2), ("a", 3)]:
        assert uses[agent].steps == pytest.approx(steps, abs=0.1)
    assert uses["b"].probability > 0.95
    assert uses["a"].probability == pytest.approx(2 / 3, abs=0.07)
    assert END not in uses


def test_looking_ahead_over_a_branch():
    transitions = Transitions()
    for index in range(200):
        play(transitions, ["a", "x", "z", END] if index % 4 else ["a", "y", "y2", "z", END])
    uses = first_uses(transitions, "t", ("a",))
    assert uses["x"].probability == pytest.approx(0.75, abs=0.05)
    assert uses["y"].probability == pytest.approx(0.25, abs=0.05)
    assert uses["z"].probability > 0.9
    assert uses["z"].steps == pytest.approx(2.25, abs=0.1)
    assert uses.keys() <= {"x", "y", "y2", "z"}


def test_looking_ahead_ends_at_the_horizon():
    transitions = Transitions()
    agents = [f"s{index}" for index in range(20)]
    for _ in range(10):
        play(transitions, agents)
    assert set(first_uses(transitions, "t", ("s0",), horizon=3)) == {"s1", "s2", "s3"}
    assert all(0 < use.probability <= 1 for use in first_uses(transitions, "t", ("s0",), horizon=30).values())
