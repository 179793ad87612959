"""Profiles: from a data sheet, from measurements, and what is wrong with a file that is neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvflow.errors import ConfigError
from kvflow.sim import Machine, Model, Profile, load_profile, profile_names

CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
MEASURED = {
    "name": "measured",
    "prefill_step_s": 0.01,
    "prefill_token_s": 1e-4,
    "attention_token_s": 1e-8,
    "decode_step_s": 0.02,
    "decode_sequence_s": 0.001,
    "decode_context_token_s": 1e-7,
    "load_token_s": 1e-6,
    "backup_token_s": 1e-6,
    "storage_token_s": 1e-5,
}


@pytest.mark.parametrize("name", profile_names())
def test_what_comes_with_kvflow_can_be_loaded(name: str) -> None:
    profile = load_profile(name)
    assert profile.compute_s(0, 1000) > 0
    assert profile.costs.saved_token_s(1000, backed_up=False) > profile.costs.saved_token_s(1000, backed_up=True)


def test_computing_a_prompt_in_parts_takes_as_long_as_at_once() -> None:
    profile = Profile.model_validate(MEASURED)
    assert profile.compute_s(0, 700) + profile.compute_s(700, 1000) == pytest.approx(profile.compute_s(0, 1000))


def test_a_decode_step_costs_its_requests_and_their_contexts() -> None:
    assert Profile.model_validate(MEASURED).decode_s(3, 5000) == pytest.approx(0.02 + 3 * 0.001 + 5000 * 1e-7)


def test_a_machine_times_a_model_by_its_geometry(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = Model.read(tmp_path / "config.json")
    assert model.parameters == 2 * (64 * 16 * (2 * 4 + 2 * 2) + 3 * 64 * 128) + 2 * 1000 * 64
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    machine = Machine(name="m", flops=1e12, memory_bytes_s=1e11, link_bytes_s=1e10)
    profile = machine.profile(model)
    assert profile.prefill_token_s == pytest.approx(2 * model.parameters / 5e11)
    assert profile.load_token_s == pytest.approx(model.kv_bytes_per_token / 8e9)
    assert profile.decode_s(0, 0) == pytest.approx(0.004 + 2 * model.parameters / 7e10)


@pytest.mark.parametrize(("geometry", "width"), [({}, 64), ({"head_dim": 32}, 128)])
def test_attention_takes_as_long_as_the_heads_are_wide(tmp_path: Path, geometry: dict[str, int], width: int) -> None:
    """Whatever the hidden size is, to which they add up only where the heads have no width of their own."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | geometry))
    machine = Machine(name="m", flops=1e12, memory_bytes_s=1e11, link_bytes_s=1e10)
    profile = machine.profile(Model.read(tmp_path / "config.json"))
    assert profile.attention_token_s == pytest.approx(4 * 2 * width / 5e11)


def test_a_file_may_hold_measured_times_or_a_machine(tmp_path: Path) -> None:
    measured, machine, model = tmp_path / "measured.json", tmp_path / "machine.json", tmp_path / "config.json"
    measured.write_text(json.dumps(MEASURED))
    machine.write_text(json.dumps({"name": "m", "flops": 1e12, "memory_bytes_s": 1e11, "link_bytes_s": 1e10}))
    model.write_text(json.dumps(CONFIG))
    assert load_profile(str(measured)) == Profile.model_validate(MEASURED)
    assert load_profile(str(machine), model).prefill_token_s < load_profile(str(machine)).prefill_token_s


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must hold a JSON object"),
        ('{"name": "x"}', "prefill_step_s"),
        ('{"name": "x", "flops": 1}', "memory_bytes_s"),
        (json.dumps(MEASURED | {"prefill_token_s": 0}), "prefill_token_s"),
        (json.dumps(MEASURED | {"colour": "red"}), "colour"),
    ],
)
def test_a_file_that_is_neither_is_refused_with_what_is_wrong(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=problem):
        load_profile(str(path))


def test_a_profile_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match="h200"):
        load_profile("h20000")


def test_a_model_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        Model.read(tmp_path / "config.json")


@pytest.mark.parametrize("key", ["kv_lora_rank", "num_local_experts"])
def test_a_model_of_which_a_token_uses_less_is_to_be_measured(tmp_path: Path, key: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64, key: 8}))
    with pytest.raises(ConfigError, match=f"{key}.*kvflow sim measure"):
        Model.read(tmp_path / "config.json")


def test_measured_times_are_those_of_one_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave --model out"):
        load_profile("cpu", tmp_path / "config.json")
