"""Prompts told as block hashes: Claude Code sessions (weka), Mooncake's and Bailian's requests."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.trace import Spawn, WorkflowEnd
from kvflow.trace.importers.runs import Runs


def request(t: float, tokens: int, out: int, h: list[int], **more: Any) -> dict[str, Any]:
    usual = {"type": "n", "stop": "tool_use", "input_types": ["tool_result"], "api_time": 2.0, "think_time": 1.0}
    return {"t": t, "in": tokens, "out": out, "h": h} | usual | more


def weka(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    head = {"id": "trace_1", "block_size": 64, "tool_tokens": 100, "system_tokens": 50, "group": "g"}
    return head | {"requests": list(requests)} | fields


def test_runs_merge_and_compare() -> None:
    runs = Runs.of([1, 2, 3, 7, 8, 20])
    assert (runs.runs, runs.blocks, runs.last) == ([(1, 3), (7, 2), (20, 1)], 6, 20)
    assert runs.head(4).runs == [(1, 3), (7, 1)]
    assert runs.common(Runs.of([1, 2, 3, 7, 9])) == 4
    assert runs.common(Runs.of([1, 2])) == 2
    assert runs.common(Runs.of([2])) == 0
    pieces = list(runs.pieces("x", 10, 25, 57))
    assert [(piece.offset, piece.tokens) for piece in pieces] == [(35, 5), (70, 20), (200, 7)]


def test_a_request_keeps_the_blocks_it_shares_and_the_answer_if_it_is_long_enough(imported: Any) -> None:
    found = imported(
        weka(
            request(0, 200, 10, [0, 1, 3], input_types=["text"], think_time=0.0),  # 192 in blocks, 8 beyond
            request(5, 300, 10, [3, 4, 1]),  # all of them, and room for the answer
            request(9, 305, 90, [4, 5, 0]),  # all of them, but no room for it
            request(15, 220, 5, [2, 9, 1]),  # goes back
        )
    )
    one, two, three, four = found.calls
    assert [call.prompt.tokens for call in found.calls] == [200, 300, 305, 220]
    assert (one.prompt.base, [piece.tokens for piece in one.prompt.add]) == (None, [192, 8])
    assert (two.prompt.base, two.prompt.keep_tokens) == (one.call, 210)
    assert (three.prompt.base, three.prompt.keep_tokens) == (two.call, 300)
    assert (four.prompt.keep_tokens, [piece.tokens for piece in four.prompt.add]) == (128, [64, 28])
    assert {call.fixed_tokens for call in found.calls} == {None}, "nobody else has these blocks"
    assert one.output_tokens == 10


def test_blocks_may_be_listed_as_they_are_published(imported: Any) -> None:
    coded = [request(0, 200, 10, [0, 1, 3]), request(5, 300, 10, [3, 7, 1]), request(15, 220, 5, [2, 9, 1])]
    side = {"t": 30.0, "duration_ms": 9000, "requests": [request(0, 130, 1, [0, 90, 2])]}
    listed = [[1, 2, 3], [1, 2, 3, 7], [1, 2, 9]]
    published = [{**row, "hash_ids": ids} for row, ids in zip(coded, listed, strict=True)]
    published.append({**side, "requests": [{**side["requests"][0], "hash_ids": [90, 91]}]})
    for row in (*published, *published[-1]["requests"]):
        row.pop("h", None)
    found = imported(weka(*published))
    assert found.bad == []
    assert found.events == imported(weka(*coded, side)).events
    assert [call.prompt.keep_tokens for call in found.calls] == [0, 210, 128, 0]


def test_a_request_continues_the_call_it_shares_most_with(imported: Any) -> None:
    found = imported(
        weka(
            request(0, 640, 1, [0, 1, 10]),
            request(3, 128, 1, [1, 50, 1]),  # something else in between
            request(6, 704, 1, [1, 2, 10]),  # goes on with the first
        )
    )
    first, _, third = found.calls
    assert (third.prompt.base, third.prompt.keep_tokens) == (first.call, 641)


def test_waiting_for_a_tool_is_a_tool_and_other_waiting_is_delay(imported: Any) -> None:
    found = imported(
        weka(
            request(0, 64, 1, [0, 1, 1], input_types=["text"], think_time=0.0),
            request(10, 128, 1, [1, 2, 1], think_time=8.0, stop="end_turn"),
            request(60, 192, 1, [2, 3, 1], think_time=48.0, input_types=["text"]),
            request(70, 256, 1, [3, 4, 1], think_time=None),
        )
    )
    assert " ".join(found.shape) == "llm_call tool_start tool_end llm_call llm_call tool_start tool_end llm_call"
    assert [end.seconds for end in found.tool_ends] == [8.0, 8.0]
    assert [call.delay_s for call in found.calls] == [0.0, 0.0, 48.0, 0.0]
    assert [call.llm_s for call in found.calls] == [2.0, 2.0, 2.0, 2.0]
    assert found.events[-1] == WorkflowEnd(workflow="trace_1", t=72.0)


def test_silence_before_an_untimed_request_is_not_counted_again_behind_it(imported: Any) -> None:
    text = {"input_types": ["text"], "stop": "end_turn"}
    found = imported(
        weka(
            request(0, 64, 1, [0, 1, 1], think_time=0.0, **text),
            request(33, 128, 1, [1, 2, 1], think_time=31.0, **text, api_time=None),
            request(46, 192, 1, [2, 3, 1], think_time=44.0, **text, api_time=None),  # since the first one's end
            request(58, 256, 1, [3, 4, 1], think_time=56.0, **text),
            request(70, 320, 1, [4, 5, 1], think_time=10.0, **text),
        )
    )
    assert [call.delay_s for call in found.calls] == [0.0, 31.0, 13.0, 12.0, 10.0]


def test_a_sub_agent_runs_beside_its_parent_until_its_end(imported: Any) -> None:
    side = {
        "t": 23.0,
        "type": "subagent",
        "subagent_type": "Explore",
        "duration_ms": 20_000,
        "tool_tokens": 10,
        "system_tokens": 5,
        "requests": [request(0, 64, 1, [0, 90, 1]), request(4, 128, 1, [1, 91, 1])],
    }
    found = imported(
        weka(request(0, 64, 1, [0, 1, 1]), request(10, 128, 1, [1, 2, 1]), side, request(30, 192, 1, [2, 3, 1]))
    )
    child = next(event.child for event in found.events if isinstance(event, Spawn))
    assert child == "side:Explore"
    main = " ".join(kind for kind in found.shape if "@" not in kind)
    assert main == "llm_call tool_start spawn tool_end llm_call tool_start join tool_end llm_call"
    sides = [call for call in found.calls if call.thread == child]
    assert [(call.agent, call.t) for call in sides] == [("Explore", 3.0), ("Explore", 7.0)]
    assert sides[1].prompt.base == sides[0].call


@pytest.mark.parametrize("is_tool", [True, False])
def test_waiting_for_a_sub_agent_is_no_time_of_the_tool_or_of_the_client(imported: Any, is_tool: bool) -> None:
    side = {"t": 33.0, "duration_ms": 30_000, "requests": [request(0, 64, 1, [0, 90, 1], api_time=25.0)]}
    stops = {"stop": "tool_use" if is_tool else "end_turn"}
    found = imported(
        weka(
            request(0, 64, 1, [0, 1, 1], **stops),  # answered at 2 s
            side,  # runs from 3 to 28 s
            request(40, 128, 1, [1, 2, 1], think_time=38.0),
        )
    )
    own_s = [end.seconds for end in found.tool_ends] if is_tool else [found.calls[-1].delay_s]
    assert own_s == [13.0], "a second before it and twelve after it"


def test_a_sub_agent_that_nobody_waits_for_takes_no_time_from_a_tool(imported: Any) -> None:
    side = {"t": 63.0, "duration_ms": 60_000, "requests": [request(0, 64, 1, [0, 90, 1], api_time=60.0)]}
    found = imported(weka(request(0, 64, 1, [0, 1, 1]), request(40, 128, 1, [1, 2, 1], think_time=38.0), side))
    assert [end.seconds for end in found.tool_ends] == [38.0]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (weka(request(0, 64, 1, [5])), "keeps 5 of 0 blocks"),
        (weka(request(0, 64, 1, [0, 1, 4])), "4 blocks, but 64 tokens"),
        (weka(request(0, 64, 1, [0, 1])), "shorter"),
        (weka(request(0, -1, 1, [0])), "in"),
        (weka(request(0, 64, 1, [])), "h"),
        (weka(request(0, 64, 1, [0, 1, 1]), request(5, 64, 1, [0]) | {"h": None}), "at 5 s has neither hash_ids nor h"),
        (weka(request(0, 64, 1, [0]) | {"h": None, "hash_ids": [-1]}), "hash_ids"),
        (weka() | {"requests": 3}, "requests"),
    ],
)
def test_a_session_that_contradicts_itself_is_reported(imported: Any, bad: dict[str, Any], problem: str) -> None:
    found = imported(weka(request(0, 64, 1, [0, 1, 1])), bad)
    assert len(found.programs) == 1
    assert [each.line for each in found.bad] == [2]
    assert problem in found.bad[0].problem


def mooncake(ms: int, tokens: int, hashes: list[Any], **more: Any) -> dict[str, Any]:
    return {"timestamp": ms, "input_length": tokens, "output_length": 30, "hash_ids": hashes, **more}


def test_a_request_that_extends_all_but_the_last_block_continues_the_conversation(imported: Any) -> None:
    found = imported(
        mooncake(0, 2000, [0, 1, 2, 3]),
        mooncake(1000, 2000, [0, 5, 6, 7]),  # shares the system prompt only
        mooncake(4000, 3000, [0, 1, 2, 8, 9, 10]),  # goes on with the first
        mooncake(9000, 3500, [0, 1, 2, 8, 9, 11, 12]),  # and on
    )
    first, other, second, third = found.calls
    assert len({call.workflow for call in (first, second, third)}) == 1
    assert other.workflow != first.workflow
    assert (second.prompt.base, second.prompt.keep_tokens, second.delay_s) == (first.call, 3 * 512, 4.0)
    assert (third.prompt.base, third.prompt.keep_tokens) == (second.call, 5 * 512)
    assert [start.t for start in found.starts] == [0.0, 1.0]
    assert found.whole(other)[0][:2] == found.whole(first)[0][:2]  # equal blocks are equal contents
    assert [call.prompt.tokens for call in found.calls] == [2000, 2000, 3000, 3500]


def test_one_shared_block_is_a_system_prompt_and_no_conversation(imported: Any) -> None:
    found = imported(mooncake(0, 600, [0, 1]), mooncake(1000, 1200, [0, 2, 3]))
    assert len(found.starts) == 2


def test_an_hour_of_silence_ends_a_conversation(imported: Any) -> None:
    hour = 3_600_000
    found = imported(
        mooncake(0, 2000, [0, 1, 2, 3]),
        mooncake(hour, 2000, [0, 1, 2, 4]),
        mooncake(2 * hour + 1, 2000, [0, 1, 2, 5]),
    )
    assert [event.event for event in found.events if event.event != "llm_call"] == [
        "workflow_start",
        "workflow_end",
        "workflow_start",
        "workflow_end",
    ]


def test_bailian_says_who_continues_whom(imported: Any) -> None:
    found = imported(
        mooncake(5, 40, [11, 12, 13], chat_id=1, parent_chat_id=-1, type="text", turn=1),
        mooncake(7, 40, [11, 12, 13], chat_id=2, parent_chat_id=-1, type="search", turn=1),
        mooncake(65, 70, [11, 12, 14, 15, 16], chat_id=3, parent_chat_id=1, type="text", turn=2),
    )
    assert [start.type for start in found.starts] == ["bailian-text", "bailian-search"]
    first, _, third = found.calls
    assert third.workflow == first.workflow
    assert (third.prompt.base, third.prompt.keep_tokens, third.delay_s) == (first.call, 32, 60.0)


@pytest.mark.parametrize("block", [16, 64, 512])
def test_tokens_per_block_are_found_in_the_rows(imported: Any, block: int) -> None:
    rows = [mooncake(0, n * block - 3, list(range(100 * n, 101 * n))) for n in (3, 7, 5)]
    assert [call.prompt.add[0].offset for call in imported(*rows).calls] == [300 * block, 700 * block, 500 * block]


def test_hashes_may_be_texts_and_rows_may_say_their_block_size(imported: Any) -> None:
    found = imported(
        mooncake(0, 130, ["aa", "bb", "cc"], block_size=64), mooncake(1, 130, ["aa", "dd", "ee"], block_size=64)
    )
    one, other = found.calls
    assert one.prompt.add[0] == other.prompt.add[0]
    assert one.prompt.add[1] != other.prompt.add[1]
    assert one.prompt.tokens == 130


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (mooncake(0, 0, []), "input_length"),
        (mooncake(0, 600, [1, 2, 3]), "3 blocks of 512 tokens for 600 tokens"),
        (mooncake(0, 600, [-1, 2]), "hash_ids"),
        (mooncake(-5, 600, [1, 2]), "timestamp"),
        ('{"hash_ids": [1, 2', "JSON"),
    ],
)
def test_a_request_that_cannot_be_used_is_reported(imported: Any, bad: Any, problem: str) -> None:
    found = imported(mooncake(0, 1600, [0, 1, 2, 3]), bad, mooncake(9, 1600, [7, 8, 9, 10]))
    assert len(found.programs) == 2
    assert [each.line for each in found.bad] == [2]
    assert problem in found.bad[0].problem
