"""What is asked for becomes a plan, or is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kvflow.cli.planning import LEAST_DEVICE_TOKENS, Asked, planned
from kvflow.errors import ConfigError, MissingExtraError
from kvflow.replay.arms import parse_arms
from kvflow.replay.run import Plan
from kvflow.replay.work import Load
from kvflow.sim.workload import Workload
from kvflow.trace import SynthOptions, programs, synthetic_trace

NONE: dict[str, Any] = {
    "launch": None,
    "profile": None,
    "flags": "",
    "device_tokens": None,
    "host_tokens": None,
    "link": None,
    "page_tokens": None,
    "prompts": "ids",
    "tokenizer": None,
}
LAUNCH = "--model-path m --device cpu"


def workload(*task_tokens: int) -> Workload:
    found = []
    for seed, tokens in enumerate(task_tokens):
        options = SynthOptions(workflows=1, seed=seed, fixed_tokens=16, task_tokens=tokens, output_tokens=8, turns=1)
        found += programs(synthetic_trace("chain", options)[1])
    return Workload(found)


def plan(
    folder: Path,
    work: Workload,
    *arms: str,
    url: str | None = None,
    load: Load | None = None,
    rounds: int = 1,
    **asked: Any,
) -> Plan:
    made = Plan(arms=tuple(parse_arms(arms, url)), engine=None, load=load or Load(), rounds=rounds)
    (only,) = planned(made, Asked(**(NONE | asked), folder=folder), work, [None])
    return only


def test_what_a_profile_lacks_to_launch_its_servers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvflow.errors.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"--profile cpu needs an optional package: .*\[sglang\]"):
        plan(tmp_path, workload(64))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("@kvflow --kvflow-policy nope", "arm 'mine': eviction policy 'nope' does not exist"),
        ("@kvflow KVFLOW_GARD__ENABLED=0", "arm 'mine': environment variable KVFLOW_GARD__ENABLED"),
        ("@kvflow KVFLOW_CONFIG=missing.yaml", r"arm 'mine': .* names missing\.yaml, which is not a file"),
        ("@kvflow --kvflow-config missing.yaml", r"arm 'mine': .* names missing\.yaml, which is not a file"),
    ],
)
def test_settings_with_which_a_server_would_not_start_are_refused(tmp_path: Path, settings: str, told: str) -> None:
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=told):
        plan(tmp_path, workload(64), "lru", f"mine={settings}")
    assert dict(os.environ) == before
    plan(tmp_path, workload(64), "lru", "mine=@kvflow --kvflow-policy steps KVFLOW_GUARD__ENABLED=0")


def test_more_rounds_do_not_change_the_sizes(tmp_path: Path) -> None:
    """Whatever later rounds draw."""
    work = workload(64, 64, 64, 64, 64, 8000)
    one = plan(tmp_path, work, load=Load(programs=1))
    assert all(program.calls[0].prompt.tokens < 200 for program in one.load.drawn(work, 0)), "the long one comes later"
    assert plan(tmp_path, work, load=Load(programs=1), rounds=6).engine == one.engine
    assert one.notes["device_tokens"] > 8000


def test_no_more_programs_run_at_once_than_there_are(tmp_path: Path) -> None:
    made = Plan(arms=tuple(parse_arms(["lru"])), engine=None, load=Load(programs=3))
    plans = planned(made, Asked(**NONE, folder=tmp_path), workload(64, 64, 64, 64), [2, 8, 100, None])
    assert [each.load.at_once for each in plans] == [2, 3, None]


def test_small_traces_get_room_for_a_server_to_start(tmp_path: Path) -> None:
    assert plan(tmp_path, workload(20)).notes["device_tokens"] == LEAST_DEVICE_TOKENS


def test_requests_beyond_the_context_are_refused_with_a_scale_that_works(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"context 65,536: give --scale 0\.\d+ or less") as refused:
        plan(tmp_path, workload(150_000))
    scale = float(str(refused.value).split("--scale ")[1].split()[0])
    assert 0.3 < scale < 0.5
    assert plan(tmp_path, workload(150_000), load=Load(tokens=scale)).engine is not None


def test_an_arm_without_a_host_tier_is_launched_without_one(tmp_path: Path) -> None:
    launch = f"{LAUNCH} --enable-hierarchical-cache --hicache-ratio 2"
    engine = plan(tmp_path, workload(20), "lru", "no-host", launch=launch).engine
    assert engine is not None
    assert engine.host_flags == ("--enable-hierarchical-cache", "--hicache-ratio", "2")
    assert "--hicache-ratio" not in engine.flags


def test_the_users_flags_decide_what_is_not_given(tmp_path: Path) -> None:
    launched = plan(tmp_path, workload(20), launch=f"{LAUNCH} --page-size 32", device_tokens="1000")
    assert launched.engine is not None
    assert launched.engine.flags == ("--page-size", "32", "--enable-metrics", "--max-total-tokens", "1024")
    assert (launched.engine.host_flags, launched.page_tokens) == ((), None)


@pytest.mark.parametrize(
    ("arms", "url", "asked", "told"),
    [
        ((), "http://here", {"launch": LAUNCH}, "--launch: no server is launched"),
        ((), "http://here", {"flags": "--tp 2", "device_tokens": "1k"}, "--flags, --device-tokens: no server is"),
        ((), None, {"launch": LAUNCH, "link": 0.0}, "--link is of the CPU engine's pretended link"),
        ((), None, {"launch": LAUNCH, "profile": "gpu"}, "--profile and --launch both say what is launched"),
        ((), "http://here", {"profile": "cpu"}, "--profile: no server is launched"),
        ((), None, {"profile": "gpu", "link": 1e9}, "--link is of the CPU engine's pretended link"),
        ((), None, {"tokenizer": "m"}, "--tokenizer is for --prompts chat"),
        ((), None, {"launch": LAUNCH, "flags": "--tp 2"}, "give all flags in --launch"),
        ((), None, {"launch": f"{LAUNCH} --enable-kvflow"}, "--launch has --enable-kvflow.*leave it to the arms"),
        ((), None, {"flags": "--enable-kvflow"}, "--flags has --enable-kvflow"),
        ((), None, {"flags": "--max-total-tokens 4096"}, "--flags has --max-total-tokens: give --device-tokens"),
        ((), None, {"flags": "--hicache-ratio=4"}, "--flags has --hicache-ratio: give --host-tokens"),
        ((), None, {"launch": LAUNCH, "host_tokens": "1k"}, "--host-tokens needs --device-tokens"),
        ((), None, {"launch": f"{LAUNCH} --page-size x", "device_tokens": "50%"}, "--launch has --page-size x: give"),
        ((), None, {"launch": f"{LAUNCH} --page-size 0", "device_tokens": "50%"}, "--launch has --page-size 0: give"),
        (("lru", "no-host"), None, {"launch": LAUNCH}, "'no-host' leaves out the host tier, but no other arm has one"),
        (("lru", "no-host"), None, {"host_tokens": "none"}, "'no-host' leaves out the host tier"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    arms: tuple[str, ...], url: str | None, asked: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        plan(tmp_path, workload(20), *arms, url=url, **asked)
