"""What a result says of the command and the machine it is of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvflow.cli.circumstances import circumstances
from kvflow.report.page import origin
from kvflow.report.result import Document

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["bench/bench_tree.py", "--json", "/a/b.json"], "python bench/bench_tree.py --json b.json"),
        (["bench/quality/run.py", "m5", "--json=/a/b.json"], "python bench/quality/run.py m5 --json=b.json"),
        ([".venv/bin/kvflow", "replay", "/a/t.jsonl"], "kvflow replay t.jsonl"),
        (
            ["bench/bench_bfcl.py", "--arm", "fits=@lru --page-size 8"],
            "python bench/bench_bfcl.py --arm 'fits=@lru --page-size 8'",
        ),
        ([".venv/bin/kvflow", "replay", "--api-key", "it's mine", "-x"], "kvflow replay --api-key … -x"),
        ([".venv/bin/kvflow", "replay", "--flags", "--api-key mine"], "kvflow replay --flags '--api-key …'"),
    ],
)
def test_a_result_names_the_command_that_made_it(
    words: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(ROOT / words[0]), *words[1:]])
    assert circumstances()["command"] == command


def test_a_script_is_known_from_its_own_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "bench" / "quality")
    monkeypatch.setattr(sys, "argv", ["gate.py"])
    assert circumstances()["command"] == "python bench/quality/gate.py"


def test_a_script_of_another_checkout_is_known_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bench" / "bench_reuse.py"), "--device", "cuda"])
    assert circumstances()["command"] == "python bench/bench_reuse.py --device cuda"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bench" / ".venv" / "bin" / "kvflow"), "demo"])
    assert circumstances()["command"] == "kvflow demo"


def test_a_repository_that_kvflow_is_merely_installed_in_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / ".venv" / "kvflow" / "cli"
    installed.mkdir(parents=True)
    (installed / "circumstances.py").touch()
    monkeypatch.setattr("kvflow.cli.circumstances.__file__", str(installed / "circumstances.py"))
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "theirs")
    for words in (("init", "-q"), commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert circumstances()["git"] == {"commit": None, "dirty": None}
    for words in (("add", "-f", "."), commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert circumstances()["git"]["commit"] is not None


def test_gpus_are_named_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "nvidia-smi"
    asked.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.86.15'\n")
    asked.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    made = circumstances()
    assert made["machine"]["gpus"] == ["NVIDIA H200, 143771 MiB, 570.86.15"]
    assert "NVIDIA H200" in origin(Document.read(made))["machine"]

    asked.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert circumstances()["machine"]["gpus"] == []


def test_a_machine_without_gpus_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert circumstances()["machine"]["gpus"] == []
