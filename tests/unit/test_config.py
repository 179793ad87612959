"""Settings: precedence, and errors for what would otherwise be ignored without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvflow import config
from kvflow.errors import ConfigError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("KVFLOW_"):
            monkeypatch.delenv(name)


def test_argument_beats_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert config.load().pin.max_ttl_s == 600
    file = tmp_path / "kvflow.yaml"
    file.write_text("pin: {max_ttl_s: 1, default_ttl_s: 7}\n")
    monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    assert config.load().pin.max_ttl_s == 1
    monkeypatch.setenv("KVFLOW_PIN__MAX_TTL_S", "2")
    assert config.load().pin.max_ttl_s == 2
    assert config.load().pin.default_ttl_s == 7
    assert config.load({"pin": {"max_ttl_s": 3}}).pin.max_ttl_s == 3


@pytest.mark.parametrize("name", ["KVFLOW_EVICTOIN__POLICY", "KVFLOW_EVICTION__POLICI", "KVFLOW_POLICY"])
def test_a_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "lru")
    with pytest.raises(ConfigError, match=name):
        config.load()


@pytest.mark.parametrize(
    "name",
    [
        "KVFLOW_SERVICE_HOST",
        "KVFLOW_ROUTER_SERVICE_PORT_HTTP",
        "KVFLOW_PORT",
        "KVFLOW_ROUTER_PORT_30000_TCP_ADDR",
    ],
)
def test_what_kubernetes_says_of_a_service_is_no_setting(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "10.0.0.1")
    assert config.load() == config.Settings()


def test_a_missing_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVFLOW_CONFIG", str(tmp_path / "absent.yaml"))
    with pytest.raises(ConfigError, match="not a file"):
        config.load()


def test_an_unknown_key_in_the_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "kvflow.yaml"
    file.write_text("pin: {max_ttl: 1}\n")
    monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    with pytest.raises(ConfigError, match="max_ttl"):
        config.load()


def test_a_value_out_of_range_is_an_error() -> None:
    with pytest.raises(ConfigError, match="max_workflows"):
        config.load({"intake": {"max_workflows": 0}})


def test_what_kvflow_config_prints_can_be_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kvflow.cli.config import annotated_yaml

    lines = list(annotated_yaml(config.Settings))
    assert max(map(len, lines)) <= 120
    file = tmp_path / "kvflow.yaml"
    file.write_text("\n".join(lines))
    monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    assert config.load() == config.Settings()
    monkeypatch.setenv("KVFLOW_GUARD__ENABLED", "false")
    assert config.load().guard.enabled is False


@pytest.mark.parametrize("name", ["KVFLOW_COSTS__LOAD_TOKEN_S", "KVFLOW_GUARD__RATIO"])
def test_costs_and_tolerated_losses_are_not_negative(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "-1")
    with pytest.raises(ConfigError, match="greater than or equal to 0"):
        config.load()


def test_no_setting_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor could the status be told as JSON."""
    monkeypatch.setenv("KVFLOW_INTAKE__WORKFLOW_IDLE_S", "inf")
    with pytest.raises(ConfigError, match="finite"):
        config.load()


@pytest.mark.parametrize("text", ["guard: [1, 2", "- guard", "guard", "3", "1: 2", "\udcff"])
def test_a_file_without_settings_is_an_error_that_names_it(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kvflow.yaml"
    file.write_text(text, errors="surrogateescape")
    monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    with pytest.raises(ConfigError, match=rf"KVFLOW_CONFIG names {file}, which (cannot be read|has no settings)"):
        config.load()
    file.write_text("")
    assert config.load() == config.Settings()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("eviction: {polcy: lru}", r"eviction\.polcy in \S+ is not a kvflow setting; see `kvflow config`"),
        ("evction: {policy: lru}", r"evction in \S+ is not a kvflow setting; see `kvflow config`"),
        ("guard: {ratio: -1}", r"setting guard\.ratio in \S+: Input should be greater .* \(got -1\)"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_name(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kvflow.yaml"
    file.write_text(text)
    monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    with pytest.raises(ConfigError, match=f"^{told}$"):
        config.load()


def test_what_is_wrong_in_a_variable_is_not_blamed_on_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "kvflow.yaml"
    file.write_text("guard: {ratio: 0.5}")
    monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    monkeypatch.setenv("KVFLOW_GUARD__RATIO", "-1")
    with pytest.raises(ConfigError, match=r"^setting guard\.ratio: "):
        config.load()


def test_a_section_of_which_all_is_commented_out_has_its_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kvflow.yaml"
    file.write_text("eviction:\n  # policy: lru\nguard: {ratio: 0.5}\n")
    monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    assert config.load().eviction == config.Eviction()
    assert config.load().guard.ratio == 0.5


@pytest.mark.parametrize("value", ["off", "", "{"])
def test_a_section_is_set_one_by_one_or_as_json(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KVFLOW_GUARD", value)
    with pytest.raises(ConfigError, match=r"KVFLOW_GUARD is a section, .* give KVFLOW_GUARD__ENABLED"):
        config.load()
    monkeypatch.setenv("KVFLOW_GUARD", '{"enabled": false}')
    assert config.load().guard.enabled is False


def test_what_may_be_chosen_is_printed() -> None:
    from kvflow.cli.config import annotated_yaml

    assert "One of: off, rotate, rotate+repair, kvcomm, kvcomm+repair." in "\n".join(annotated_yaml(config.Settings))
