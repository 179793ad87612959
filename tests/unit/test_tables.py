"""Numbers in documents are those of result files, and every result file is one that a document names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "bench").glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = ROOT / "bench" / "results"


@pytest.fixture(autouse=True)
def _bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))


def test_the_table_in_the_readme_is_what_was_measured() -> None:
    from readme_table import render

    readme = (ROOT / "README.md").read_text()
    source = re.search(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", readme, re.S)
    assert source
    result = json.loads((ROOT / source[1]).read_text())
    assert source[2] == render(result)
    assert result["seams_hold"]
    assert result["identical_tokens"]
    assert result["git"]["dirty"] is False
    assert result["comparison"][0]["metric"] == "recomputed + reloaded tokens"
    assert result["comparison"][0]["ratio"] <= 0.70


def test_the_tables_of_replays_are_what_was_measured() -> None:
    from replay_tables import BLOCK, PAGE, render

    blocks = BLOCK.findall(PAGE.read_text())
    assert blocks
    for names, table in blocks:
        assert table == render(names.split()), "run python bench/replay_tables.py --write"
        for name in names.split():
            result = json.loads((RESULTS / name).read_text())
            assert result["seams_hold"], name
            assert result["git"]["dirty"] is False, name


def test_documents_name_results_that_are_there_and_all_of_them() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    named = {name for name in re.findall(r"\b([a-z0-9-]+)\.json", text) if (RESULTS / f"{name}.json").exists()}
    missing = {name for name in re.findall(r"results/([a-z0-9-]+)\.json", text) if name not in named}
    assert not missing, "named, and not there"
    assert {path.stem for path in RESULTS.glob("*.json")} == named, "there, and not named"
