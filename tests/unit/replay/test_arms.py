"""Arms are read from the command line."""

from __future__ import annotations

import pytest

from kvflow.errors import ConfigError
from kvflow.replay.arms import DEFAULT, PRESETS, parse_arm, parse_arms


def test_arms_of_a_name_are_what_is_compared() -> None:
    arms = parse_arms(DEFAULT)
    assert [arm.name for arm in arms] == ["lru", "kvflow"]
    assert [(arm.kvflow, arm.hints, arm.host) for arm in arms] == [(False, False, True), (True, True, True)]
    assert not PRESETS["no-host"].host
    assert PRESETS["session"].sessions
    assert PRESETS["kvflow-infer"].kvflow
    assert not PRESETS["kvflow-infer"].hints


def test_settings_are_flags_variables_and_switches() -> None:
    arm = parse_arm("mine=@kvflow --kvflow-policy steps KVFLOW_GUARD__ENABLED=false no-host")
    assert (arm.name, arm.hints, arm.host) == ("mine", True, False)
    assert arm.flags == ("--enable-kvflow", "--kvflow-policy", "steps")
    assert arm.env == (("KVFLOW_GUARD__ENABLED", "false"),)
    assert parse_arm("a b=--schedule-policy lpm").flags == ("--schedule-policy", "lpm")
    assert parse_arm("x=--chat-template 'a b'").flags == ("--chat-template", "a b")


def test_programs_tell_what_they_do_only_where_somebody_listens() -> None:
    assert parse_arm("own=--enable-kvflow").hints
    assert not parse_arm("own=--enable-kvflow no-hints").hints
    assert not parse_arm("own=@kvflow-infer").hints
    assert not parse_arm("own=--schedule-policy lpm").hints


def test_a_server_that_runs_has_a_url() -> None:
    arm = parse_arm("theirs=http://localhost:30000/ hints")
    assert (arm.url, arm.hints, arm.kvflow) == ("http://localhost:30000", True, True)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["lur"], "there is no arm 'lur': give one of no-host, lru"),
        (["x=@lur"], "there is no arm 'lur'"),
        (["=--flag"], "is no arm"),
        (["a/b=--flag"], "is no arm"),
        (["x=--flag 'open"], "No closing quotation"),
        (["lru", "lru"], "two arms are called 'lru'"),
    ],
)
def test_what_cannot_be_read_is_told(texts: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_arms(texts)
