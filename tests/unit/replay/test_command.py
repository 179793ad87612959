"""What the commands refuse before they do anything: addresses that are none, folders that are files, pages."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from kvflow.cli import app
from kvflow.cli.live import connect, get
from kvflow.errors import ServerUnavailableError
from kvflow.trace import SynthOptions, synthetic_trace, write_trace


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300", "TERM": "dumb"})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, *synthetic_trace("chain", SynthOptions(workflows=3, turns=1)))
    return path


def test_a_folder_that_is_a_file_is_refused(trace: Path) -> None:
    for folder in (trace, trace / "rounds"):
        result = run("replay", trace, "--folder", folder, "--dry-run")
        assert result.exit_code == 2, result.output
        assert f"{trace} is not a folder: give another --folder" in result.output


@pytest.mark.parametrize(
    "option", ["--link", "--rate", "--scale", "--time-scale", "--max-gap", "--tool-s", "--timeout", "--threshold"]
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused(trace: Path, option: str, value: str) -> None:
    words = ("compare", trace, trace) if option == "--threshold" else ("replay", trace, "--dry-run")
    result = run(*words, option, value)
    assert result.exit_code == 2, result.output
    assert f"Invalid value for '{option}'" in result.output


def test_loads_are_played_once_each_and_at_most_all_programs_at_once(trace: Path, tmp_path: Path) -> None:
    loads = ("--concurrency", "2", "--concurrency", "1", "--concurrency", "2", "--concurrency", "9")
    result = run("replay", trace, "--url", "http://here:1", *loads, "--folder", tmp_path / "f", "--dry-run")
    assert result.exit_code == 0, result.output
    assert [line.split(" at once")[0] for line in result.output.splitlines() if " at once" in line] == [
        "3 programs, 1",
        "3 programs, 2",
        "3 programs, 3",
    ], result.output


@pytest.mark.parametrize("words", [(), ("--profile", "gpu"), ("--prompts", "chat")])
def test_a_dry_run_writes_nothing(trace: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    result = run("replay", trace, "--folder", tmp_path / "f", "--dry-run", *words)
    assert result.exit_code == 0, result.output
    assert "3 programs" in result.output
    assert list(tmp_path.iterdir()) == [trace]


def test_an_address_that_is_none_is_refused(trace: Path) -> None:
    for words in (("replay", trace, "--url", "http://host:port"), ("explain", "--url", "http://host:port")):
        result = run(*words)
        assert result.exit_code == 2, result.output
        assert "'http://host:port' is no address of a server" in result.output


def test_a_server_that_answers_with_a_page_is_not_kvflows() -> None:
    for answer in (httpx.Response(200, text="<html>welcome"), httpx.Response(200, json=[])):
        transport = httpx.MockTransport(lambda _, answer=answer: answer)
        with (
            httpx.Client(transport=transport, base_url="http://here/kvflow/v1") as client,
            pytest.raises(ServerUnavailableError, match="here/kvflow/v1/status answers something else than SGLang"),
        ):
            get(client, "status")


def test_an_address_may_be_the_one_the_client_library_takes() -> None:
    with connect("http://here:1/v1/", None) as client:
        assert str(client.base_url) == "http://here:1/kvflow/v1/"
