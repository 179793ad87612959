"""The report of a simulated comparison: verdicts, tables, one HTML file, and calm about what is missing."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvflow.report import simulation_tables, write_simulation_html
from kvflow.report.lines import short_number
from kvflow.report.simulation_record import Interval, PolicyRecord, Simulation, amount
from kvflow.report.simulation_rows import cautions, full_rows, headline
from kvflow.report.verdict import Verdict
from tests.unit.report.reading import HOSTILE, Page, printed

POLICIES = {"lru": 1.0, "steps": 1.08, "cost": 0.7, "belady": 0.55}


def mean_of(mean: float, half: float) -> dict[str, Any]:
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": 5}


def policy_of(name: str, ratio: float, lost_s: float) -> dict[str, Any]:
    measures = {
        "lost_s": mean_of(lost_s * ratio, 0.3 * lost_s),
        "recomputed_s": mean_of(0.8 * lost_s * ratio, 0.1),
        "reloaded_s": mean_of(0.2 * lost_s * ratio, 0.1),
        "completion_mean_s": mean_of(60 * ratio, 4),
        "rejected": mean_of(0, 0),
        "calls": mean_of(600, 0),
    }
    if name == "cost":
        measures |= {"guard_share": mean_of(0.75, 0.1), "guard_mistakes": mean_of(3, 1)}
    return {
        "policy": name,
        "asked": name not in ("lru", "belady"),
        "oracle": name == "belady",
        "measures": measures,
        "relative": {"lost_s": mean_of(ratio, 0.05 if ratio != 1 else 0), "completion_mean_s": mean_of(ratio, 0.5)},
        "evicted_tokens": {"device/tail": 12_345.6},
        "gap_closed": (1 - ratio) / (1 - POLICIES["belady"]),
    }


def make_document(*, devices: tuple[int, ...] = (30, 50, 70), hosts: tuple[int, ...] = (0, 100)) -> dict[str, Any]:
    return {
        "kind": "simulation",
        "created": "2026-11-20T17:00:00Z",
        "command": "kvflow simulate trace.jsonl.gz --sweep",
        "git": {"commit": "4f2c91ab", "dirty": False},
        "machine": {"cpu": "AMD EPYC", "cores": 2, "memory_gib": 24.0},
        "versions": {"kvflow": "0.1.0"},
        "settings": {"seeds": [0, 1, 2, 3, 4], "admission": "fcfs", "limit": None},
        "profile": {"name": "h200", "notes": "", "prefill_token_s": 3.2e-5},
        "traces": [{"name": "trace.jsonl.gz", "source": "test", "programs": 40, "calls": 600, "bad_rows": 0}],
        "context_tokens": 8000.0,
        "longest_request_tokens": 21_000,
        "setups": [
            {
                "device_tokens": 1000 * device,
                "device_size": f"{device}%",
                "host_tokens": 1000 * host,
                "host_size": f"{host}%",
                "concurrency": 16,
                "too_long": 0,
                "gap_note": "",
                "policies": [policy_of(name, ratio, 20.0 - device / 5) for name, ratio in POLICIES.items()],
            }
            for host in hosts
            for device in devices
        ],
    }


@pytest.fixture
def document() -> dict[str, Any]:
    return make_document()


@pytest.fixture
def single() -> dict[str, Any]:
    return make_document(devices=(50,), hosts=(0,))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    def written(document: dict[str, Any]) -> str:
        write_simulation_html(document, tmp_path / "simulation.html")
        return (tmp_path / "simulation.html").read_text(encoding="utf-8")

    return written


@pytest.mark.parametrize(
    ("relative", "verdict"),
    [
        (None, Verdict.UNKNOWN),
        ({"mean": 0.9}, Verdict.SAME),
        ({"mean": 1.1}, Verdict.SAME),
        ({"mean": 0.995}, Verdict.SAME),
        ({"mean": 1.005, "low": 1.004, "high": 1.006}, Verdict.SAME),
        ({"mean": 0.9, "low": 0.85, "high": 0.95}, Verdict.BETTER),
        ({"mean": 0.9, "low": 0.7, "high": 1.1}, Verdict.SAME),
        ({"mean": 1.2, "low": 1.1, "high": 1.3}, Verdict.WORSE),
        ({"mean": 1.2, "low": 0.9, "high": 1.5}, Verdict.SAME),
    ],
)
def test_a_verdict_needs_one_percent_and_more_than_chance(relative: dict[str, float] | None, verdict: Verdict) -> None:
    record = PolicyRecord.model_validate({"policy": "cost", "relative": {"lost_s": relative}})
    assert record.verdict() is verdict


def test_a_number_alone_is_a_mean() -> None:
    assert Interval.model_validate(3) == Interval(mean=3.0)
    assert Interval(mean=3.0).half is None


def test_amounts_are_short() -> None:
    assert [short_number(tokens) for tokens in (512, 60_672, 141_567, 1_520_000)] == ["512", "60.7k", "142k", "1.52M"]
    assert [amount(0), amount(400_000, "400k"), amount(1500, "50%")] == ["–", "400,000 tokens", "1,500 tokens (50%)"]


def test_one_server_gets_a_table_of_everything(single: dict[str, Any]) -> None:
    text = printed(simulation_tables(single))
    for word in ("time lost", "10.0 ±3.0", "0.70 ±0.05", "67 %", "evicted device/tail", "12,346", "guard mistakes"):
        assert word in text
    assert "(lru)" in text
    assert "(belady)" in text
    assert "stalled" not in text, "nobody measured it"


def test_several_servers_get_a_line_per_policy(document: dict[str, Any]) -> None:
    document["setups"][1]["gap_note"] = "Belady loses 1.0% less than LRU"
    document["setups"][2]["policies"][2]["measures"]["rejected"] = mean_of(7, 0)
    text = printed(simulation_tables(document))
    assert text.count("cost") == 6
    assert "16 programs at a time, no host tier" in text
    assert "16 programs at a time, host tier 100,000 tokens (100%)" in text
    assert "device 50,000 (50%): no gap to close: Belady loses 1.0% less" in text
    assert "device 70,000 (70%): 7 calls rejected" in text


def test_losses_are_red_and_gains_green(single: dict[str, Any]) -> None:
    rows = {row.label: row.cells for row in full_rows(Simulation.read(single).setups[0])}
    verdicts = [cell.verdict for cell in rows["relative to LRU"]]
    assert verdicts == [Verdict.SAME, Verdict.WORSE, Verdict.BETTER, Verdict.BETTER]
    assert [cell.verdict for cell in rows["completion mean"]][2] is Verdict.SAME, "its interval holds 1"


def test_headlines_word_losses_like_gains(document: dict[str, Any], single: dict[str, Any]) -> None:
    assert headline(Simulation.read(document)) == (
        "cost lost less time than LRU on 6 of 6 simulated servers, more on 0, with no clear difference on 0"
    )
    told = {
        0.7: "cost lost 30% less time than LRU: 0.70 ±0.05 of it",
        1.3: "cost lost 30% more time than LRU, which is worse: 1.30 ±0.05 of it",
        0.97: "cost lost 3% less time than LRU, but over 5 seeds that may be chance (0.97 ±0.05 of LRU's)",
        1.004: "cost lost as much time as LRU, within 1 %",
    }
    for ratio, words in told.items():
        single["setups"][0]["policies"][2]["relative"]["lost_s"] = mean_of(ratio, 0.05)
        assert headline(Simulation.read(single)).replace("\xa0", " ") == words
    single["setups"][0]["policies"][2]["relative"]["lost_s"] = {"mean": 0.7}
    assert headline(Simulation.read(single)).endswith("but of one seed that may be chance (0.70 of LRU's)")
    single["setups"][0]["policies"][2]["relative"] = {}
    assert "nothing for cost to gain" in headline(Simulation.read(single))
    del single["setups"][0]["policies"][1:3]
    assert headline(Simulation.read(single)) == "No policy was compared with LRU"


def test_the_last_policy_asked_for_is_the_candidate_without_cost(single: dict[str, Any]) -> None:
    del single["setups"][0]["policies"][2]
    assert Simulation.read(single).candidate == "steps"


def test_cautions(single: dict[str, Any]) -> None:
    assert cautions(Simulation.read(single)) == ()
    single["setups"][0]["too_long"] = 4
    single["traces"][0]["bad_rows"] = 3
    for policy in single["setups"][0]["policies"]:
        policy["measures"] = {name: {"mean": value["mean"]} for name, value in policy["measures"].items()}
    found = " ".join(cautions(Simulation.read(single)))
    assert "smaller than the longest request (21,000 tokens)" in found
    assert "one seed only" in found
    assert "3 rows" in found


@pytest.mark.parametrize("devices", [(50,), (30, 50)])
def test_cautions_stand_below_the_tables(devices: tuple[int, ...]) -> None:
    document = make_document(devices=devices, hosts=(0,))
    assert "Caution." not in printed(simulation_tables(document))
    document["traces"][0]["bad_rows"] = 3
    assert printed(simulation_tables(document)).endswith("Caution. 3 rows of the traces could not be used.\n")


@pytest.mark.parametrize("devices", [(50,), (30, 50, 70)])
def test_the_page_is_well_formed_and_needs_nothing_else(devices: tuple[int, ...], write: Callable[..., str]) -> None:
    html = write(make_document(devices=devices))
    page = Page(html)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert page.tags["svg"] == page.tags["desc"] == (2 * 4 if len(devices) > 1 else 2 * 2)
    assert not re.search(r"https?://|//[a-z]|@import|url\(", html)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "default-src 'none'" in html
    assert not re.search(r'[ "]-?(nan|inf)[ "]', html)


def test_the_page_has_every_policy_everywhere(document: dict[str, Any], write: Callable[..., str]) -> None:
    html = write(document)
    text = Page(html).text
    for policy in POLICIES:
        assert text.count(f"{policy} at 30,000 (30%) tokens") == 2 * 4, "four charts a load"
        assert text.count(policy) >= 20
    assert html.count('class="cell-worse"') > html.count('class="cell-worse"', 0, html.index('id="everything"')) > 0
    for word in ("trace.jsonl.gz (test; 40 programs", "profile name", "16 programs at a time, no host tier"):
        assert word in text


def test_a_gap_that_is_none_is_explained_not_drawn(document: dict[str, Any], write: Callable[..., str]) -> None:
    for setup in document["setups"]:
        setup["gap_note"] = "LRU loses nothing here"
        for policy in setup["policies"]:
            policy["gap_closed"] = None
    page = Page(write(document))
    assert page.tags["svg"] == 2 * 3
    assert "no gap to close. Device 30,000 (30%): LRU loses nothing here." in page.text


def test_shares_far_off_stay_in_the_chart(document: dict[str, Any], write: Callable[..., str]) -> None:
    document["setups"][0]["policies"][1]["gap_closed"] = -40.0
    document["setups"][1]["policies"][1]["gap_closed"] = 7.0
    html = write(document)
    heights = [float(value) for value in re.findall(r'cy="([-\d.]+)"', html)]
    assert min(heights) >= 0
    assert max(heights) <= 260
    assert "-4000" in html.replace("\xa0", " "), "the table has the value"


def test_everything_a_result_names_is_escaped(document: dict[str, Any], write: Callable[..., str]) -> None:
    for setup in document["setups"]:
        setup |= {"device_size": HOSTILE, "host_size": HOSTILE, "gap_note": HOSTILE}
        setup["policies"][1]["policy"] = HOSTILE
        setup["policies"][1]["evicted_tokens"] = {HOSTILE: 1}
    document |= {"kind": HOSTILE, "command": HOSTILE, "settings": {HOSTILE: HOSTILE}, "profile": {HOSTILE: HOSTILE}}
    document["traces"][0] |= {"name": HOSTILE, "source": HOSTILE, "token_counts": HOSTILE}
    page = Page(write(document))
    assert not {"script", "img"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_nothing_at_all_is_a_page_of_notes(write: Callable[..., str]) -> None:
    page = Page(write({}))
    assert page.text.count("no data") == 2
    assert "svg" not in page.tags
    assert printed(simulation_tables({})) == ""


@pytest.mark.parametrize("field", list(make_document()))
def test_any_field_may_be_missing_or_null(field: str, document: dict[str, Any], write: Callable[..., str]) -> None:
    Page(write({key: value for key, value in document.items() if key != field}))
    Page(write(document | {field: None}))


@pytest.mark.parametrize("field", ["policies", "device_tokens", "concurrency", "device_size", "gap_note", "too_long"])
def test_any_field_of_a_server_may_be_missing(field: str, document: dict[str, Any], write: Callable[..., str]) -> None:
    for setup in document["setups"][:2]:
        del setup[field]
    Page(write(document))
    printed(simulation_tables(document))


@pytest.mark.parametrize("field", ["measures", "relative", "evicted_tokens", "gap_closed", "asked", "oracle"])
def test_any_field_of_a_policy_may_be_null(field: str, document: dict[str, Any], write: Callable[..., str]) -> None:
    for setup in document["setups"]:
        setup["policies"][1][field] = None
        setup["policies"][2]["measures"] = {"lost_s": None, "completion_mean_s": float("nan")}
    Page(write(document))
    printed(simulation_tables(document))


def test_the_document_survives_json(document: dict[str, Any]) -> None:
    twin = json.loads(json.dumps(document))
    assert Simulation.read(twin) == Simulation.read(document)
    broken = copy.deepcopy(document)
    broken["setups"][0]["device_tokens"] = "many"
    with pytest.raises(ValueError, match="device_tokens"):
        Simulation.read(broken)


BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], str]:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "simulate_page", raising=False)
    import simulate_page  # pyright: ignore[reportMissingImports]

    return simulate_page.render


def bench_result() -> dict[str, Any]:
    made = make_document()
    source = {
        "trace": made["traces"][0] | {"token_counts": "counted"},
        "context_tokens": 8000,
        "limit": 32,
        "left_out": 2,
        "git": made["git"],
        "setups": made["setups"],
    }
    return made | {"settings": {"seeds": 5, "limit": None, "calls": 1500}, "sources": {"swe/a": source, "b": source}}


def test_the_bench_page_has_a_table_per_source_and_marks_losses(render: Callable[..., str]) -> None:
    page = render(bench_result()).replace("\xa0", " ")
    assert page.count("## ") == 1 + 2
    assert "`cost` is worse than LRU on 0 of 12 servers." in page
    assert "| 16 | 30% | – | 14 s (0 %) | **1.08 worse** · -18 % | 0.70 · 67 % | 0.55 |" in page
    assert "2 of them left out" in page
    assert page.endswith("|\n")


def test_the_bench_page_lists_our_losses(render: Callable[..., str]) -> None:
    result = bench_result()
    result["sources"]["b"] = copy.deepcopy(result["sources"]["b"])
    result["sources"]["b"]["setups"][4]["policies"][2]["relative"]["lost_s"] = mean_of(1.2, 0.1)
    page = render(result)
    assert "`cost` is worse than LRU on 1 of 12 servers:" in page
    assert "- b, 16 at a time, device 50%, host 100%: 1.20, 7 s lost" in page


def test_the_results_page_is_current(render: Callable[..., str]) -> None:
    result = json.loads((BENCH / "results" / "simulate.json").read_text())
    assert (BENCH.parent / "docs" / "results.md").read_text() == render(result), "python bench/bench_simulate.py --page"
