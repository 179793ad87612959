"""Arms are read from the command line."""

from __future__ import annotations

import pytest

from kvflow.errors import ConfigError
from kvflow.replay.arms import PRESETS, flag_of, parse_arm, parse_arms, server_url


def test_arms_of_a_name_are_what_is_compared() -> None:
    arms = parse_arms(())
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
    assert not parse_arm("own= @kvflow-silent").hints
    assert not parse_arm("own=--schedule-policy lpm").hints


def test_texts_are_reused_where_the_arm_says_so() -> None:
    arm = parse_arm("rotate=@kvflow-reuse KVFLOW_REUSE__MODE=rotate")
    assert (arm.reuse, arm.hints, dict(arm.env)) == (True, True, {"KVFLOW_REUSE__MODE": "rotate"})
    assert parse_arm("own=--enable-kvflow reuse").reuse
    assert parse_arm("theirs=http://localhost:30000 reuse").kvflow
    assert [arm.name for arm in PRESETS.values() if arm.reuse] == ["kvflow-reuse"]
    assert not parse_arm("own=@kvflow-reuse no-hints").reuse


def test_a_server_that_runs_has_a_url() -> None:
    arm = parse_arm("theirs=http://localhost:30000/ hints")
    assert (arm.url, arm.hints, arm.kvflow) == ("http://localhost:30000", True, True)


def test_the_root_of_its_openai_api_is_its_address_too() -> None:
    assert [server_url(f"http://h:1{path}") for path in ("", "/", "/v1", "/v1/")] == ["http://h:1"] * 4


def test_a_server_that_runs_can_only_be_used_in_different_ways() -> None:
    arms = parse_arms((), "http://localhost:30000/")
    assert [(arm.name, arm.hints, arm.url) for arm in arms] == [
        ("silent", False, "http://localhost:30000"),
        ("telling", True, "http://localhost:30000"),
    ]
    (own,) = parse_arms(["x=http://there:1 hints sessions"], "http://localhost:30000")
    assert (own.url, own.sessions) == ("http://there:1", True)


@pytest.mark.parametrize(
    "text",
    ["lru", "no-host", "kvflow", "x=--schedule-policy lpm", "x=KVFLOW_GUARD__ENABLED=false", "x=no-host", "x=@session"],
)
def test_a_server_that_runs_is_not_said_to_be_another(text: str) -> None:
    with pytest.raises(ConfigError, match="is a way to launch a server, and the one at http://here runs already"):
        parse_arms([text], "http://here")


@pytest.mark.parametrize("url", ["http://host:port", "localhost:30000", "http://", "ftp://host"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is no address of a server.*give one like http://HOST:30000"):
        parse_arms((), url)


def test_a_flag_given_twice_has_the_last_value() -> None:
    flags = ("--a", "1", "--b", "--a=2", "--c")
    assert [flag_of(flags, name) for name in ("--a", "--b", "--c", "--d")] == ["2", "--a=2", "", None]


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["lur"], "there is no arm 'lur': give one of no-host, lru"),
        (["x=@lur"], "there is no arm 'lur'"),
        (["x=KVFLOW_PREFETCH__ENABLED=false @kvflow"], "arm 'x' has @kvflow after other settings"),
        (["x=@lru @kvflow"], "give @kvflow first"),
        (["=--flag"], "is no arm"),
        (["a/b=--flag"], "is no arm"),
        (["x=--flag 'open"], "No closing quotation"),
        (["lru", "lru"], "two arms are called 'lru'"),
        (["my kv=@lru", "my-kv=@kvflow"], "two arms are called 'my kv'"),
        (["theirs=http://host:port hints"], "'http://host:port' is no address of a server"),
        (["theirs=http://here --schedule-policy lpm"], "'theirs' is a way to launch a server"),
    ],
)
def test_what_cannot_be_read_is_told(texts: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_arms(texts)
