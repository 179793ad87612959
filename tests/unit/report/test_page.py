"""The HTML report: well formed, self-contained, escaped, complete, and calm about what is missing."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvflow.errors import MissingExtraError
from kvflow.report import write_html
from tests.unit.report.reading import HOSTILE, Page


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    def written(document: dict[str, Any]) -> str:
        write_html(document, tmp_path / "report.html")
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return written


def test_the_page_is_well_formed_and_its_references_hold(document: dict[str, Any], write: Callable[..., str]) -> None:
    page = Page(write(document))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {part for value in page.values("aria-labelledby") for part in value.split()} <= set(ids)
    assert page.tags["svg"] == len(page.values("aria-labelledby")) == len(page.values("role"))
    assert page.tags["desc"] == page.tags["svg"]
    assert page.tags["h1"] == 1


def test_the_page_needs_nothing_but_itself(document: dict[str, Any], write: Callable[..., str]) -> None:
    html = write(document)
    page = Page(html)
    assert not re.search(r"https?://|//[a-z]|@import|url\(", html)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not page.values("src") + page.values("href")
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html


def test_every_agent_is_named_once_per_chart(document: dict[str, Any], write: Callable[..., str]) -> None:
    page = Page(write(document))
    agents = list(document["graph"]["agents"])
    charts = [labels for labels in page.labels if "planner" in labels]
    assert len(charts) == 1 + 3 * 2 + 1, "the graph, two arms in three rounds, latency"
    for labels in charts:
        assert [labels.count(agent) for agent in agents] == [1] * len(agents)


def test_every_step_has_a_mark_with_a_tooltip(document: dict[str, Any], write: Callable[..., str]) -> None:
    page = Page(write(document))
    steps = [step for arm in document["arms"] for step in arm["steps"]]
    assert page.text.count("takes") == len(steps)
    first = steps[0]
    assert f"prompt {first['prompt_tokens']:,} tokens: {first['device_tokens']:,} device hit" in page.text


def test_gains_and_losses_are_shown_alike(document: dict[str, Any], write: Callable[..., str]) -> None:
    html = write(document)
    assert html.count('<tr class="better">') == 5
    assert html.count('<tr class="worse">') == 2
    assert html.count('<tr class="same">') == 1
    assert "worse in 2 (step latency, p95 +8.9" in Page(html).text


def test_a_run_that_lost_says_so_first(document: dict[str, Any], write: Callable[..., str]) -> None:
    document["comparison"][0] |= {"kvflow": 240_000, "ratio": 2.0}
    document |= {"identical_tokens": False, "seams_hold": False}
    text = Page(write(document)).text
    assert "recomputed + reloaded tokens rose by 100 %, which is worse" in text
    assert text.count("Caution.") == 2


def test_branches_joins_and_loops_are_marked(document: dict[str, Any], write: Callable[..., str]) -> None:
    html = write(document)
    page = Page(html)
    assert {"30 %", "60 %", "10 %", "25 %", "75 %"} <= {label.replace("\xa0", " ") for label in page.labels[0]}
    assert "step 3, joins all" in page.labels[0]
    assert html.count('class="edge branch loop"') == 1
    assert html.count('class="edge loop"') == 1
    assert html.count('class="edge branch"') == 4


def test_everything_a_result_names_is_escaped(document: dict[str, Any], write: Callable[..., str]) -> None:
    hostile = rename(document, "coder", HOSTILE)
    for arm in hostile["arms"]:
        arm["name"] += HOSTILE
        for step in arm["steps"]:
            step["workflow"] += HOSTILE
    hostile["graph"]["name"] = hostile["command"] = hostile["kind"] = hostile["created"] = HOSTILE
    hostile["settings"] = {HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}}
    hostile["versions"] = hostile["machine"] = hostile["git"] = {HOSTILE: HOSTILE, "cpu": HOSTILE, "commit": HOSTILE}
    hostile["comparison"][0] |= {"metric": HOSTILE, "unit": HOSTILE}
    page = Page(write(hostile))
    assert not {"script", "img"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.text.count("alert") > len(document["arms"][0]["steps"])


def rename(document: dict[str, Any], agent: str, name: str) -> dict[str, Any]:
    twin = copy.deepcopy(document)
    twin["graph"]["agents"] = {name if key == agent else key: value for key, value in twin["graph"]["agents"].items()}
    for i, edge in enumerate(twin["graph"]["edges"]):
        if isinstance(edge, dict):
            twin["graph"]["edges"][i] = {key: name if end == agent else end for key, end in edge.items()}
        else:
            twin["graph"]["edges"][i] = [name if end == agent else end for end in edge]
    for arm in twin["arms"]:
        for step in arm["steps"]:
            step["agent"] = name if step["agent"] == agent else step["agent"]
    return twin


def test_lone_surrogates_and_long_names_do_no_harm(document: dict[str, Any], write: Callable[..., str]) -> None:
    page = Page(write(rename(rename(document, "coder", "\ud800" * 3), "tester", "名" * 128)))
    assert any(label.endswith("…") and label.startswith("名") for label in page.labels[0])


def test_six_hundred_steps_fit_into_a_megabyte(make: Callable[..., dict[str, Any]], write: Callable[..., str]) -> None:
    document = make(rounds=4, workflows=9)
    assert sum(len(arm["steps"]) for arm in document["arms"]) >= 600
    assert len(write(document).encode()) < 1_000_000


def test_nothing_at_all_is_a_page_full_of_notes(write: Callable[..., str]) -> None:
    page = Page(write({}))
    assert page.text.count("no data") == 5
    assert page.tags["svg"] == 0


FIELDS = [
    "kind", "created", "command", "git", "machine", "versions", "settings", "seams_hold", "identical_tokens", "graph",
    "arms", "comparison",
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_any_field_may_be_missing_or_null(field: str, document: dict[str, Any], write: Callable[..., str]) -> None:
    Page(write({key: value for key, value in document.items() if key != field}))
    Page(write(document | {field: None}))


@pytest.mark.parametrize("field", ["name", "policy", "kvflow", "steps", "workflows", "residency"])
def test_any_field_of_an_arm_may_be_missing(field: str, document: dict[str, Any], write: Callable[..., str]) -> None:
    for arm in document["arms"]:
        del arm[field]
    Page(write(document))


@pytest.mark.parametrize("field", ["round", "workflow", "agent", "start_s", "latency_s", "prompt_tokens", "new_tokens"])
def test_any_field_of_a_step_may_be_null(field: str, document: dict[str, Any], write: Callable[..., str]) -> None:
    for arm in document["arms"]:
        for step in arm["steps"]:
            step[field] = None
    Page(write(document))


def test_one_arm_is_drawn_without_being_compared(document: dict[str, Any], write: Callable[..., str]) -> None:
    document |= {"arms": document["arms"][:1], "comparison": []}
    page = Page(write(document))
    assert "This run compared nothing" in page.text
    assert page.tags["svg"] == 1 + 3 + 1


def test_an_arm_without_steps_says_so_beside_the_one_with_steps(
    document: dict[str, Any], write: Callable[..., str]
) -> None:
    document["arms"][0] |= {"steps": [], "workflows": []}
    assert Page(write(document)).text.count("no data: this arm recorded no steps in this round") == 3


def test_agents_outside_the_graph_get_a_row_too(document: dict[str, Any], write: Callable[..., str]) -> None:
    document["arms"][0]["steps"][0]["agent"] = "stranger"
    labels = [labels for labels in Page(write(document)).labels if "stranger" in labels]
    assert len(labels) == 3 * 2 + 1


@pytest.mark.parametrize(
    ("graph", "note"),
    [
        ({"name": "x", "edges": [["START", "a"], ["a", "a"]]}, "END"),
        ({"edges": [["START"]]}, "edges.0"),
        ({"edges": [["START", "a0"], *([f"a{i}", f"a{i + 1}"] for i in range(100))]}, "too many to draw"),
    ],
)
def test_a_graph_that_cannot_be_drawn_is_explained(
    graph: dict[str, Any], note: str, document: dict[str, Any], write: Callable[..., str]
) -> None:
    page = Page(write(document | {"graph": graph}))
    assert note in page.text
    assert len([labels for labels in page.labels if "planner" in labels]) == 3 * 2 + 1


def test_odd_numbers_draw_without_harm(document: dict[str, Any], write: Callable[..., str]) -> None:
    document["settings"] |= {"device_tokens": float("inf"), "host_tokens": "many", "x": None, "y": [1, {"z": True}]}
    document["arms"][1]["residency"] = [
        {"at_s": 1.0, "tokens": {"device/fixed": float("nan"), "host/tail": -5, "odd": 3}},
        {"at_s": 1.0, "tokens": None},
    ]
    for step in document["arms"][0]["steps"]:
        step |= {"start_s": 5.0, "latency_s": -1.0, "device_tokens": -3, "host_tokens": 3, "new_tokens": 0}
    html = write(document)
    Page(html)
    assert not re.search(r'[ "]-?(nan|inf)[ "]', html)


def test_without_jinja2_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, document: dict[str, Any], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[report\]"'):
        write_html(document, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
