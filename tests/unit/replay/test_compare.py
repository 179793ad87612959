"""Two results against each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvflow.errors import ConfigError
from kvflow.replay.compare import Count, changes, surroundings
from kvflow.replay.metrics import PAIRED, measures, values
from tests.unit.replay.test_metrics import played


def result(factor: float, failed: int = 0, arms: tuple[str, ...] = ("kvflow",), **settings: Any) -> dict[str, Any]:
    """What replays write, as it is read: 36 calls of every arm."""
    own = []
    for arm in arms:
        rounds = [played(arm, index, factor, noise=0.02) for index in range(3)]
        kept = [{"round": seen.index, **{name: values([seen], name)[seen.index] for name in PAIRED}} for seen in rounds]
        own.append({"name": arm, "measures": measures(rounds) | {"failed_calls": failed}, "workflows": kept})
    document = {
        "kind": "replay",
        "settings": {"seed": 0, "free": False, "load": {"at_once": 8, "tokens": 1.0}, "pace": {}} | settings,
        "traces_digest": "a",
        "loads": [{"at_once": 8, "programs": 12, "sizes": {"device_tokens": 1024}, "arms": own}],
    }
    return json.loads(json.dumps(document))


def test_results_are_compared_workflow_by_workflow() -> None:
    before = result(1.0)
    (worse,) = changes(before, result(1.2), 0.02)
    assert worse.problem.startswith("completion takes 1.2")
    assert set(worse.paired) == {"completion_s", "run_s", "ttft_s", "latency_s"}
    for factor in (1.0, 0.8):
        (fine,) = changes(before, result(factor), 0.02)
        assert fine.problem == ""


def test_one_workflow_that_took_longer_is_not_worse() -> None:
    before, after = result(1.0), result(1.2)
    for document in (before, after):
        workflows = document["loads"][0]["arms"][0]["workflows"]
        del workflows[1:]
        workflows[0]["completion_s"] = {"0.0": workflows[0]["completion_s"]["0.0"]}
    (found,) = changes(before, after, 0.02)
    assert (found.problem, found.paired["completion_s"].pairs) == ("", 1)
    assert found.paired["completion_s"].ratio_low > 1.1


def test_a_larger_share_of_failed_calls_is_worse() -> None:
    (failed,) = changes(result(1.0), result(0.8, failed=3), 0.02)
    assert (failed.problem, failed.after) == ("more of its calls failed", Count(failed=3, calls=36))
    shorter = result(1.0, failed=2)
    shorter["loads"][0]["arms"][0]["measures"]["calls"] = 18
    (failed,) = changes(result(1.0, failed=3), shorter, 0.02)
    assert failed.problem == "more of its calls failed", "2 of 18 are more than 3 of 36"
    (fine,) = changes(shorter, result(1.0, failed=3), 0.02)
    assert fine.problem == ""


def test_an_arm_of_which_all_has_failed_is_worse() -> None:
    after = result(1.0, failed=36)
    for each in after["loads"][0]["arms"][0]["workflows"]:
        each |= {name: {} for name in PAIRED}
    (lost,) = changes(result(1.0), after, 0.02)
    assert lost.problem == "more of its calls failed"


def test_an_arm_of_which_all_had_failed_is_better() -> None:
    before = result(1.0, failed=36)
    for each in before["loads"][0]["arms"][0]["workflows"]:
        each |= {name: {} for name in PAIRED}
    (found,) = changes(before, result(1.0), 0.02)
    assert (found.problem, found.fewer_failed) == ("", True)


@pytest.mark.parametrize("arms", [("kvflow",), ("lru", "kvflow")])
def test_an_arm_of_which_all_had_failed_before_is_not_worse_if_all_fails_again(arms: tuple[str, ...]) -> None:
    before = result(1.0, arms=arms)
    failing = before["loads"][0]["arms"][-1]
    failing["measures"]["failed_calls"] = 36
    for each in failing["workflows"]:
        each |= {name: {} for name in PAIRED}
    again = changes(before, before, 0.02)
    assert [change.problem for change in again] == [""] * len(arms)
    assert not again[-1].tells


def test_an_arm_or_a_load_that_is_missing_is_worse() -> None:
    both = result(1.0, arms=("lru", "kvflow"))
    assert [change.problem for change in changes(both, result(1.0, arms=("lru",)), 0.02)] == ["", "it is missing"]
    assert [change.problem for change in changes(result(1.0), result(1.0, arms=("lru",)), 0.02)] == ["it is missing"]
    assert [change.arm for change in changes(result(1.0), both, 0.02)] == ["kvflow"], "more arms than before are fine"
    loads = result(1.0)
    loads["loads"].append({**loads["loads"][0], "at_once": 16})
    assert [change.problem for change in changes(loads, result(1.0), 0.02)] == ["", "it is missing"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"seed": 1}, "seed 0 and 1"),
        ({"free": True}, "free False and True"),
        ({"load": {"at_once": 8, "tokens": 0.5}}, "load .*1.0.* and .*0.5"),
        ({"pace": {"max_gap_s": 1.0}}, "pace"),
    ],
)
def test_results_of_different_work_are_not_compared(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"not of the same work: {told}.*--force"):
        changes(result(1.0), result(1.0, **settings), 0.02)
    assert changes(result(1.0), result(1.0, **settings), 0.02, force=True)


def test_other_traces_and_other_sizes_are_different_work() -> None:
    with pytest.raises(ConfigError, match="traces a and b"):
        changes(result(1.0), result(1.0) | {"traces_digest": "b"}, 0.02)
    larger = result(1.0)
    larger["loads"][0]["sizes"] = {"device_tokens": 2048}
    with pytest.raises(ConfigError, match="sizes at 8 at once"):
        changes(result(1.0), larger, 0.02)


def test_what_a_result_does_not_say_counts_as_equal() -> None:
    old = result(1.0)
    del old["traces_digest"], old["settings"]["pace"], old["loads"][0]["sizes"]
    assert changes(old, result(1.0), 0.02)[0].problem == ""


def test_what_else_may_differ_is_known() -> None:
    machine, versions = {"cpu": "a", "cores": 2}, {"sglang": "1"}
    before = {"machine": machine, "versions": versions, "settings": {"engine": {"flags": ["--tp", "1"]}}}
    after = before | {"machine": machine | {"cpu": "b"}, "settings": {"engine": {"flags": ["--tp", "2"]}}}
    assert surroundings(before, before) == surroundings({}, {}) == []
    assert surroundings(before, after) == ["cpu a and b", "flags of the servers"]


def test_what_arms_of_one_name_differ_in_is_known() -> None:
    before, after = result(1.0), result(1.0)
    assert surroundings(before, after) == []
    (old,), (new,) = (document["loads"][0]["arms"] for document in (before, after))
    old |= {"flags": ["--a"], "env": {"A": "1"}, "hints": True}
    assert surroundings(before, after) == [], "what a result does not say counts as equal"
    new |= {"flags": ["--b"], "env": {"A": "1"}, "hints": False}
    assert surroundings(before, after) == ["flags of arm 'kvflow'", "hints of arm 'kvflow'"]


@pytest.mark.parametrize("broken", [{}, {"loads": 3}, {"loads": [{"at_once": 8}]}])
def test_a_result_that_is_not_whole_is_told_of(broken: dict[str, Any]) -> None:
    for documents in ((result(1.0), {"kind": "replay"} | broken), ({"kind": "replay"} | broken, result(1.0))):
        with pytest.raises(ConfigError, match="a result is not whole"):
            changes(*documents, 0.02)


def test_what_cannot_be_compared_is_told() -> None:
    other = result(1.0)
    for each in other["loads"][0]["arms"][0]["workflows"]:
        each |= {name: {} for name in PAIRED}
    with pytest.raises(ConfigError, match="no workflow in common"):
        changes(result(1.0), other, 0.02)
    with pytest.raises(ConfigError, match="a result of kvflow replay is needed, this one is of 'demo'"):
        changes(result(1.0), {"kind": "demo"}, 0.02)
