"""Rounds that are kept belong to what would be played now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvflow.errors import ConfigError
from kvflow.replay import folder as kept
from kvflow.replay.arms import Arm, parse_arm
from kvflow.replay.folder import claim, held, read_round, round_path, traces_digest, write_round
from kvflow.replay.record import Round
from kvflow.replay.run import Plan, claimed
from kvflow.replay.server import Engine
from kvflow.replay.work import Load
from kvflow.sim.workload import Workload
from kvflow.trace import SynthOptions, programs, synthetic_trace


def workload(seed: int = 1) -> Workload:
    return Workload(list(programs(synthetic_trace("chain", SynthOptions(workflows=2, seed=seed))[1])))


def with_a_round(folder: Path, plan: dict[str, Any], work: Workload) -> Path:
    """A folder with a round in it."""
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder, plan, work)
    path = round_path(folder, 0, Arm(name="a b"))
    write_round(path, Round(arm="a b", index=0, seed=0))
    return path


def test_a_round_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = with_a_round(tmp_path / "f", {"seed": 0}, workload())
    assert read_round(path) == Round(arm="a b", index=0, seed=0, kept=True)
    claim(tmp_path / "f", {"seed": 0}, workload())
    assert path.exists()


def test_another_plan_or_other_contents_of_a_trace_are_another_replay(tmp_path: Path) -> None:
    with_a_round(tmp_path, {"seed": 0, "free": False}, workload())
    with pytest.raises(ConfigError, match=r"what differs: seed.*--fresh"):
        claim(tmp_path, {"seed": 1, "free": False}, workload())
    with pytest.raises(ConfigError, match="what differs: traces"):
        claim(tmp_path, {"seed": 0, "free": False}, workload(seed=2))
    assert traces_digest(workload()) == traces_digest(workload())


def test_arms_come_and_go_but_do_not_change(tmp_path: Path) -> None:
    def play(*words: str) -> None:
        arms = tuple(map(parse_arm, words))
        plan = Plan(arms=arms, engine=Engine(model="m"), load=Load(), rounds=0)
        with claimed(plan, workload(), tmp_path):
            pass
        for arm in arms:
            write_round(round_path(tmp_path, 0, arm), Round(arm=arm.name, index=0, seed=0))

    play("lru", "mine=@kvflow --a 1")
    play("mine=@kvflow --a 1")
    play("kvflow", "mine=@kvflow --a 1")
    for changed in ("mine=@kvflow --a 2", "lru=@kvflow"):
        with pytest.raises(ConfigError, match="what differs: arms"):
            play(changed)


def test_arms_whose_rounds_would_be_in_the_same_file_are_the_same_arm(tmp_path: Path) -> None:
    def plan(words: str) -> Plan:
        return Plan(arms=(parse_arm(words),), engine=Engine(model="m"), load=Load(), rounds=0)

    with claimed(plan("my arm=@lru"), workload(), tmp_path):
        write_round(round_path(tmp_path, 0, Arm(name="my arm")), Round(arm="my arm", index=0, seed=0))
    with pytest.raises(ConfigError, match="what differs: arms"), claimed(plan("my-arm=@lpm"), workload(), tmp_path):
        pass


def test_variables_of_sglang_count_where_servers_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cpu", "cuda"):
        with_a_round(tmp_path / device, {"engine": {"device": device}}, workload())
    monkeypatch.setenv("SGLANG_A", "1")
    claim(tmp_path / "cpu", {"engine": {"device": "cpu"}}, workload())
    with pytest.raises(ConfigError, match="what differs: environment"):
        claim(tmp_path / "cuda", {"engine": {"device": "cuda"}}, workload())


def test_what_servers_are_told_by_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_round(tmp_path, {}, workload())
    monkeypatch.setenv("KVFLOW_API_KEY", "secret")
    claim(tmp_path, {}, workload())
    assert "secret" not in (tmp_path / "plan.json").read_text()
    monkeypatch.setenv("KVFLOW_GUARD__ENABLED", "false")
    with pytest.raises(ConfigError, match="what differs: environment"):
        claim(tmp_path, {}, workload())


def test_another_kvflow_and_another_sglang_are_another_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "kvflow"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1")
    monkeypatch.setattr("kvflow.__file__", str(package / "__init__.py"))
    with_a_round(tmp_path / "f", {}, workload())
    (package / "__init__.py").write_text("a = 2")
    with pytest.raises(ConfigError, match="what differs: kvflow's source"):
        claim(tmp_path / "f", {}, workload())
    (package / "__init__.py").write_text("a = 1")
    claim(tmp_path / "f", {}, workload())
    monkeypatch.setattr(kept, "_version", lambda name: "0.0")
    with pytest.raises(ConfigError, match="what differs: versions"):
        claim(tmp_path / "f", {}, workload())


def test_rounds_of_launched_servers_are_of_one_machine(tmp_path: Path) -> None:
    machine = {"cpu": "a", "cores": 2, "memory_gib": 24.0, "gpus": []}
    launched = Plan(arms=(Arm(name="a"),), engine=Engine(model="m"), load=Load(), rounds=0)
    found = Plan(arms=(Arm(name="a", url="http://here"),), engine=None, load=Load(), rounds=0)

    def play(plan: Plan, folder: str, **changed: Any) -> None:
        with claimed(plan, workload(), tmp_path / folder, machine=machine | changed):
            pass
        write_round(round_path(tmp_path / folder, 0, plan.arms[0]), Round(arm="a", index=0, seed=0))

    play(launched, "launched")
    play(launched, "launched", memory_gib=23.9)
    with pytest.raises(ConfigError, match="what differs: machine"):
        play(launched, "launched", gpus=["H200"])
    play(found, "found")
    play(found, "found", cpu="b")


@pytest.mark.parametrize("named", ["--kvflow-config {}", "--config={}", "KVFLOW_CONFIG={}", "shell"])
def test_what_is_in_the_files_of_settings_counts(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("guard: {enabled: false}")
    if named == "shell":
        monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    words = "" if named == "shell" else named.format(file)
    plan = Plan(arms=(parse_arm(f"a=@kvflow {words}"),), engine=Engine(model="m"), load=Load(), rounds=0)

    def play() -> None:
        with claimed(plan, workload(), tmp_path / "f"):
            pass

    play()
    write_round(round_path(tmp_path / "f", 0, plan.arms[0]), Round(arm="a", index=0, seed=0))
    play()
    file.write_text("guard: {enabled: true}")
    with pytest.raises(ConfigError, match="what differs: settings files"):
        play()
    file.unlink()
    with pytest.raises(ConfigError, match="what differs: settings files"):
        play()


def test_a_folder_is_one_replays_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path / "f"), pytest.raises(ConfigError, match="in use by another replay"), held(tmp_path / "f"):
        pass
    with held(tmp_path / "f"):
        pass


def test_rounds_can_be_dropped(tmp_path: Path) -> None:
    path = with_a_round(tmp_path, {"seed": 0}, workload())
    claim(tmp_path, {"seed": 1}, workload(), fresh=True)
    assert not path.exists()
