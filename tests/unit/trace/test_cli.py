"""The command ``kvflow trace``."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvflow.cli import app
from kvflow.trace import LLMCall, open_trace

REQUESTS = [{"timestamp": n, "input_length": 600, "output_length": 3, "hash_ids": [0, n]} for n in range(1, 4)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in REQUESTS))
    return path


def test_convert_says_what_there_was_and_what_could_not_be_used(requests: Path, tmp_path: Path) -> None:
    with requests.open("a") as file:
        file.write('{"hash_ids": []}\n' * 12)
    out = tmp_path / "out.jsonl.gz"
    result = run("convert", requests, out)
    assert result.exit_code == 0
    assert "3 workflows, 3 LLM calls" in result.output
    assert "12 rows could not be used" in result.output
    assert f"{requests}:4: timestamp: Field required" in result.output
    assert f"{requests}:13:" in result.output
    assert f"{requests}:14:" not in result.output
    assert "2 more rows" in result.output
    _, events = open_trace(out, pytest.fail)
    assert sum(isinstance(event, LLMCall) for event in events) == 3
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_convert_fails_only_if_nothing_could_be_used_and_then_leaves_no_file(requests: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = run("convert", requests, out, "--format", "weka")
    assert result.exit_code == 1
    assert "nothing in" in result.output
    assert not out.exists()


def test_convert_explains_what_it_cannot_do(requests: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    unknown = tmp_path / "unknown"
    unknown.write_text('{"question": 1}\n')
    for arguments, problem in [
        ((tmp_path / "missing", out), "does not exist"),
        ((requests, out, "--format", "csv"), "there is no format 'csv'"),
        ((unknown, out), "no known format"),
        ((requests, tmp_path / "no folder" / "out"), "cannot write"),
    ]:
        result = run("convert", *arguments)
        assert result.exit_code == 2
        assert problem in " ".join(result.output.split())


def test_a_converted_trace_may_take_the_place_of_its_source(requests: Path) -> None:
    assert run("convert", requests, requests).exit_code == 0
    assert run("convert", requests, requests).exit_code == 0
    assert len(list(open_trace(str(requests), pytest.fail)[1])) == 9


def test_stats_are_for_people_and_for_machines(requests: Path, tmp_path: Path) -> None:
    other = tmp_path / "react.jsonl"
    assert run("synth", "react", other, "--workflows", 5).exit_code == 0
    for_people = run("stats", requests, other)
    assert for_people.exit_code == 0
    for text in ("requests.jsonl", "react.jsonl", "ideal prefix hit", "run_tests"):
        assert text in for_people.output
    for_machines = run("stats", "--json", requests, other)
    one, two = json.loads(for_machines.output)
    assert (one["path"], one["calls"], one["prompt_tokens"]["max"]) == (str(requests), 3, 600)
    assert one["ideal_hit_share"] == pytest.approx(2 * 512 / 1800)
    assert two["tools"][0]["seconds"]["total"] > 0


def test_synth_makes_the_same_trace_from_the_same_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        result = run("synth", "fan", tmp_path / name, "--seed", seed, "--workflows", 3, "--agents", 2, "--turns", 1)
        assert "3 workflows, 12 LLM calls, 0 tool calls, 6 spawned threads" in result.output
    texts = [(tmp_path / name).read_text() for name in "abc"]
    assert texts[0] == texts[1] != texts[2]
    assert "no synthetic program 'star'" in " ".join(run("synth", "star", tmp_path / "d").output.split())


def test_starts_that_never_come_are_refused(tmp_path: Path) -> None:
    result = run("synth", "chain", tmp_path / "a", "--apart-s", "inf")
    assert result.exit_code == 2
    assert "apart_s must be at least 0 and finite" in " ".join(result.output.split())


PROGRAM = """
import sys, httpx, kvflow
answer = lambda request: httpx.Response(200, json={"choices": [{"message": {"role": "assistant", "content": "hi"}}]})
with httpx.Client(transport=httpx.MockTransport(answer)) as client, kvflow.workflow("recorded"):
    kvflow.instrument(client)
    if "--silent" not in sys.argv:
        client.post("http://llm.test/v1/chat/completions", json={"messages": [{"role": "user", "content": "hello"}]})
sys.exit(int(sys.argv[1]))
"""


def test_record_runs_a_program_and_writes_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", "off")
    program, out = tmp_path / "program.py", tmp_path / "run.jsonl.gz"
    program.write_text(PROGRAM)
    result = run("record", "--out", out, "--", sys.executable, program, "3")
    assert result.exit_code == 3
    events = list(open_trace(out, pytest.fail)[1])
    assert [event.event for event in events] == ["workflow_start", "llm_call", "workflow_end"]


INTERRUPTED = """
try:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
finally:
    print("cleaned up", flush=True)
"""


def test_record_keeps_what_a_program_did_until_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", "off")
    program, out = tmp_path / "program.py", tmp_path / "run.jsonl"
    program.write_text("import os, signal, time\n" + PROGRAM.rpartition("sys.exit")[0] + INTERRUPTED)
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have jobs in the background ignore it
    try:
        result = run("record", "--out", out, "--", sys.executable, program)
    finally:
        signal.signal(signal.SIGINT, ours)
    assert result.exit_code == 130, result.output
    assert sum(isinstance(event, LLMCall) for event in open_trace(out, pytest.fail)[1]) == 1


def test_record_keeps_what_a_program_did_until_it_was_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", "off")
    program, out = tmp_path / "program.py", tmp_path / "run.jsonl"
    ends = "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
    program.write_text("import os, signal, time\n" + PROGRAM.rpartition("sys.exit")[0] + ends)
    result = run("record", "--out", out, "--", sys.executable, program)
    assert result.exit_code == 128 + signal.SIGTERM, result.output
    assert sum(isinstance(event, LLMCall) for event in open_trace(out, pytest.fail)[1]) == 1


def test_record_runs_nothing_if_its_trace_could_not_be_written(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    result = run("record", "--out", tmp_path / "no folder" / "run.jsonl", "--", "touch", ran)
    assert result.exit_code == 2
    assert "there is no folder" in " ".join(result.output.split())
    assert not ran.exists()


def test_record_tells_of_a_trace_that_cannot_be_written_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", "off")
    program, folder, kept = tmp_path / "program.py", tmp_path / "folder", tmp_path / "kept"
    folder.mkdir()
    kept.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(kept))
    program.write_text(f"import os\nos.rmdir({str(folder)!r})\n" + PROGRAM)
    result = run("record", "--out", folder / "run.jsonl", "--", sys.executable, program, "0")
    assert result.exit_code == 1
    assert "cannot write" in " ".join(result.output.split())
    [facts] = kept.glob("*/facts.jsonl")
    assert "facts.jsonl" in result.output
    assert run("convert", facts, tmp_path / "later.jsonl").exit_code == 0


def test_record_says_why_there_is_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", "off")
    program, out = tmp_path / "program.py", tmp_path / "run.jsonl"
    program.write_text(PROGRAM)
    silent = run("record", "--out", out, "--", sys.executable, program, "0", "--silent")
    assert (silent.exit_code, "no LLM call" in silent.output) == (1, True)
    assert "cannot run" in run("record", "--out", out, "--", tmp_path / "missing").output
    assert "which program" in run("record", "--out", out).output
    assert not out.exists()
