"""Sessions with messages: coding agents, sub-agents, condensations, and two LLMs in a dialogue."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.trace import LLMCall, Supersede, ToolStart, WorkflowEnd

TOKENS_OF = 3.5


def text(tokens: int, letter: str = "x") -> str:
    return letter * round(tokens * TOKENS_OF)


def message(role: str, content: str = "", t: float | None = None, th: str = "main", **more: Any) -> dict[str, Any]:
    return {"th": th, "role": role, "content": content, "t": t, **more}


def llm(out: int, in_tok: int | None, out_tok: int | None, times: Any = (None, None), **more: Any) -> dict[str, Any]:
    start, end = times
    took = None if start is None or end is None else end - start
    return {
        "th": "main",
        "out": out,
        "in_tok": in_tok,
        "out_tok": out_tok,
        "t_start": start,
        "t_end": end,
        "llm_seconds": took,
        **more,
    }


def tool(call: int, times: Any = (None, None), name: str = "bash", **more: Any) -> dict[str, Any]:
    start, end = times
    took = None if start is None or end is None else end - start
    return {"id": f"id{call}", "call": call, "name": name, "t_start": start, "t_end": end, "seconds": took, **more}


def session(**fields: Any) -> dict[str, Any]:
    return {
        "session_id": "s",
        "group": "issue-1",
        "source": "somebody/agent",
        "agent": "mini-swe-agent 2.2.7",
        "model": "m",
        "threads": {"main": {"parent": None, "spawned_by": None}},
        "tool_calls": [],
        **fields,
    }


def growing(**fields: Any) -> dict[str, Any]:
    """System, task, answer with a tool, its result, last answer."""
    asked = [{"id": "id0", "name": "bash", "args": {"command": "ls"}}]
    return session(
        messages=[
            message("system", text(20, "s")),
            message("user", text(80, "u"), 0.0),
            message("assistant", "look", 2.0, tool_calls=asked),
            message("tool", text(50, "r"), 2.5),
            message("assistant", "done", 4.0),
        ],
        llm_calls=[llm(2, 130, 15, (0.0, 2.0)), llm(4, 200, 5, (2.6, 4.0))],
        tool_calls=[tool(0, (2.0, 2.5), verb="ls", error=True)],
        **fields,
    )


def test_a_session_is_one_growing_conversation(imported: Any) -> None:
    found = imported(growing())
    first, second = found.calls
    assert found.header.source == "somebody/agent"
    assert (found.starts[0].type, found.starts[0].group, found.starts[0].t) == ("mini-swe-agent", "issue-1", None)
    assert found.shape == ["llm_call", "tool_start", "tool_end", "llm_call"]
    assert (first.prompt.tokens, first.prompt.base, first.output_tokens, first.llm_s) == (130, None, 15, 2.0)
    assert (second.prompt.base, second.prompt.keep_tokens, second.prompt.tokens) == (first.call, 145, 200)
    assert (first.t, first.delay_s, second.delay_s) == (0.0, 0.0, 0.1)
    start = next(event for event in found.events if isinstance(event, ToolStart))
    assert (start.tool, start.verb, start.agent) == ("bash", "ls", "mini-swe-agent")
    assert [(end.seconds, end.error) for end in found.tool_ends] == [(0.5, True)]
    assert found.events[-1] == WorkflowEnd(workflow="s", t=4.0)


def test_what_is_counted_but_not_shown_is_a_fixed_prompt_that_sessions_share(imported: Any) -> None:
    other = growing() | {"session_id": "t"}
    other["llm_calls"] = [llm(2, 125, 15), llm(4, 200, 5)]
    found = imported(growing(), other, growing() | {"session_id": "u", "model": "another"})
    one, _, two, _, three, _ = found.calls
    assert (one.fixed_tokens, two.fixed_tokens) == (50, 45)  # 30 and 25 unseen, and the system message
    assert one.prompt.add[0].content == two.prompt.add[0].content != three.prompt.add[0].content
    assert one.prompt.add[1] == two.prompt.add[1] == three.prompt.add[1]
    assert [call.prompt.tokens for call in (one, two)] == [130, 125]


def test_a_first_count_below_the_visible_texts_leaves_no_unseen_part(imported: Any) -> None:
    row = growing()
    row["llm_calls"][0]["in_tok"] = 50
    first = imported(row).calls[0]
    assert [piece.tokens for piece in first.prompt.add] == [10, 40]
    assert first.fixed_tokens == 10


def test_without_counts_lengths_are_the_tokens(imported: Any) -> None:
    row = growing()
    row["llm_calls"] = [llm(2, None, None), llm(4, None, None)]
    found = imported(row)
    assert [piece.tokens for piece in found.calls[0].prompt.add] == [20, 80]
    assert found.calls[0].fixed_tokens == 20
    assert found.calls[1].delay_s is None


def test_an_answer_counted_too_early_shares_the_growth_with_what_follows_it(imported: Any) -> None:
    row = growing()
    row["messages"][2] = message("assistant", text(50, "a"), 2.0)
    row["llm_calls"][0] |= {"out_tok": 2, "out_tok_partial": True}
    first, second = imported(row).calls
    assert first.output_tokens == 35  # half of 200 - 130, the tool result being as long
    assert (second.prompt.keep_tokens, second.prompt.tokens) == (165, 200)


def test_tools_run_side_by_side_where_their_times_overlap(imported: Any) -> None:
    def order(*times: Any) -> list[str]:
        row = growing()
        row["tool_calls"] = [tool(0, each, name=f"tool{i}") for i, each in enumerate(times)]
        found = imported(row)
        ends = [end.tool_call for end in found.tool_ends]
        return [*(kind.removeprefix("tool_") for kind in found.shape if kind != "llm_call"), *ends]

    assert order((2.0, 3.0), (2.1, 2.4)) == ["start", "start", "end", "end", "t1", "t0"]
    assert order((2.0, 2.4), (2.4, 3.0)) == ["start", "end", "start", "end", "t0", "t1"]
    assert order((2.0, 2.0), (2.0, 2.0)) == ["start", "start", "end", "end", "t0", "t1"]
    assert order((2.0, 1.5)) == ["start", "end", "t0"]  # the clock stepped back
    assert order((None, None), (2.0, 3.0)) == ["start", "start", "end", "end", "t0", "t1"]


def with_side_thread(spawned_by: str | None) -> dict[str, Any]:
    asked = [{"id": "id0", "name": "Task", "args": {"subagent_type": "Explore"}}]
    return session(
        agent="Claude Code 2.0.0",
        threads={"main": {}, "side:1": {"parent": "main", "spawned_by": spawned_by}},
        messages=[
            message("user", text(10), 0.0),
            message("assistant", "go", 1.0, tool_calls=asked),
            message("user", text(30, "j"), 1.1, "side:1"),
            message("assistant", "found", 3.0, "side:1"),
            message("tool", text(8, "r"), 4.0),
            message("assistant", "done", 5.0),
        ],
        llm_calls=[
            llm(1, 100, 5, (0.0, 1.0)),
            llm(3, 70, 5, (1.1, 3.0), th="side:1"),
            llm(5, 120, 5, (4.0, 5.0)),
        ],
        tool_calls=[tool(0, (1.0, 4.0), name="Task")],
    )


def test_a_sub_agent_lives_between_start_and_end_of_the_tool_that_spawned_it(imported: Any) -> None:
    found = imported(with_side_thread("id0"))
    shape = ["llm_call", "tool_start", "spawn", "llm_call@side:1", "join", "tool_end", "llm_call"]
    assert found.shape == shape
    main, side, _ = found.calls
    assert (main.agent, side.agent) == ("claude-code", "Explore")
    assert side.prompt.base is None
    assert side.delay_s == 0.1
    assert main.prompt.add[0].content != side.prompt.add[0].content


def test_what_a_sub_agent_takes_is_no_time_of_the_tool_that_spawned_it(imported: Any) -> None:
    row = with_side_thread("id0")
    row["llm_calls"] = [
        llm(1, 100, 5, (0.0, 1.0)),
        llm(3, 70, 5, (3.0, 116.0), th="side:1"),
        llm(5, 120, 5, (121.5, 123.0)),
    ]
    row["tool_calls"] = [tool(0, (1.0, 121.0), name="Task"), tool(0, (1.0, 119.0), id="other")]
    found = imported(row)
    assert found.shape[1:7] == ["tool_start", "spawn", "tool_start", "llm_call@side:1", "tool_end", "join"]
    assert [end.seconds for end in found.tool_ends] == [118.0, 5.0], "a tool beside it has its own time"
    assert [call.delay_s for call in found.calls] == [0.0, 2.0, 0.5]


def test_what_a_sub_agent_of_unknown_origin_takes_is_no_delay_of_the_client(imported: Any) -> None:
    row = with_side_thread(None)
    row["messages"][2:4] = [
        message("user", text(30, "j"), 11.0, "side:1"),
        message("assistant", "found", 90.0, "side:1"),
    ]
    row["llm_calls"] = [
        llm(1, 100, 5, (0.0, 1.0)),
        llm(3, 70, 5, (11.0, 90.0), th="side:1"),
        llm(5, 120, 5, (100.0, 101.0)),
    ]
    row["tool_calls"] = []
    found = imported(row)
    assert found.shape == ["llm_call", "spawn", "llm_call@side:1", "join", "llm_call"]
    assert [call.delay_s for call in found.calls] == [0.0, 10.0, 10.0]


def test_what_went_by_before_and_between_tools_is_the_delay_of_the_next_call(imported: Any) -> None:
    row = growing()
    row["llm_calls"] = [llm(2, 130, 15, (0.0, 10.0)), llm(4, 200, 5, (41.1, 42.0))]
    row["tool_calls"] = [tool(0, (40.0, 41.0))]
    assert imported(row).calls[1].delay_s == 30.1
    row["tool_calls"] = [tool(0, (12.0, 13.0)), tool(0, (20.0, 30.0)), tool(0, (25.0, 40.0))]
    assert imported(row).calls[1].delay_s == 15.1, "31.1 s less 1 and 15"


def test_a_tool_without_seconds_takes_the_time_from_its_start_to_its_end(imported: Any) -> None:
    row = growing()
    del row["tool_calls"][0]["seconds"]
    assert [end.seconds for end in imported(row).tool_ends] == [0.5]


def test_a_tool_that_ends_before_it_starts_takes_an_unknown_time(imported: Any) -> None:
    """Somebody has set the clock back meanwhile."""
    row = growing()
    row["tool_calls"] = [tool(0, (2.5, 2.0)) | {"seconds": None}]
    assert [end.seconds for end in imported(row).tool_ends] == [None]


def test_a_call_without_seconds_takes_the_time_between_its_start_and_its_end(imported: Any) -> None:
    for row in (growing(), dialogue()):
        timed = [call.llm_s for call in imported(row).calls]
        assert None not in timed
        for call in row["llm_calls"]:
            call["llm_seconds"] = None
        assert [call.llm_s for call in imported(row).calls] == timed
        row["llm_calls"][-1]["t_start"] = 1000.0
        assert imported(row).calls[-1].llm_s is None, "the clock was set back"


def test_a_sub_agent_of_unknown_origin_lives_from_its_first_to_its_last_message(imported: Any) -> None:
    found = imported(with_side_thread(None))
    assert found.shape == ["llm_call", "tool_start", "spawn", "llm_call@side:1", "join", "tool_end", "llm_call"]
    alone = with_side_thread(None)
    alone["llm_calls"] = [alone["llm_calls"][1]]
    alone["tool_calls"] = []
    assert imported(alone).shape == ["spawn", "llm_call@side:1", "join"]


def test_a_condensation_supersedes_all_but_the_head(imported: Any) -> None:
    messages = [message("system", text(20, "s")), message("user", text(30, "u"))]
    for i in range(3):
        messages += [message("assistant", text(10, "a")), message("tool", text(40, str(i)))]
    messages.append(message("assistant", "done"))
    row = session(
        agent="OpenHands agent-sdk v1",
        tools=[{"name": "execute_bash"}],
        messages=messages,
        llm_calls=[llm(2, None, 10), llm(4, None, 10), llm(6, None, 10), llm(8, None, 1)],
        condensations=[{"at": 8, "forgotten": [3, 4, 5], "summary": text(15, "z"), "summary_offset": 3, "t": 1.0}],
    )
    found = imported(row)
    first, *_, last = found.calls
    head = first.prompt.tokens + 10
    superseded = [event for event in found.events if isinstance(event, Supersede)]
    assert [(each.call, each.keep_tokens) for each in superseded] == [("c2", head)]
    assert (last.prompt.base, last.prompt.keep_tokens) == ("c2", head)
    assert [piece.tokens for piece in last.prompt.add] == [15, 10, 40]
    assert found.starts[0].type == "openhands"


def test_names_are_unique_even_if_sessions_have_the_same(imported: Any) -> None:
    found = imported(growing(), growing())
    assert [start.workflow for start in found.starts] == ["s", "s#2"]
    assert len(found.programs) == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"llm_calls": []}, "none"),
        ({"llm_calls": [llm(9, 1, 1)]}, "no message 9"),
        ({"llm_calls": [llm(2, -5, 1)]}, "llm_calls.0.in_tok"),
        ({"llm_calls": [{"out": "x"}]}, "llm_calls.0.out"),
        ({"tool_calls": [tool(7)]}, "no LLM call 7"),
        ({"messages": "hello"}, "messages"),
        ({"session_id": None}, "session_id"),
        ({"llm_calls": [llm(2, 1, 1, (float("nan"), 1.0))]}, "llm_calls.0.t_start"),
    ],
)
def test_a_session_that_cannot_be_used_is_reported(imported: Any, change: dict[str, Any], problem: str) -> None:
    found = imported(growing(), growing() | change, growing() | {"session_id": "later"})
    assert [start.workflow for start in found.starts] == ["s", "later"]
    assert [each.line for each in found.bad] == [2]
    assert problem in found.bad[0].problem


def dialogue() -> dict[str, Any]:
    asked = [{"id": "id2", "name": "look_up", "args": {}}]
    return session(
        agent="llm_agent",
        source="sierra/tau2-bench",
        domain="retail",
        user_model="u",
        threads={"agent": {}, "user_simulator": {}},
        messages=[
            message("assistant", "Hi! How can I help you today?", 0.0),
            message("user", text(20, "q"), 2.0),
            message("assistant", "", 3.0, tool_calls=asked),
            message("tool", text(30, "r"), 3.1, requestor="assistant"),
            message("assistant", text(25, "a"), 4.0),
            message("user", "###STOP###", 5.0),
        ],
        llm_calls=[
            llm(0, None, None, (None, 0.0), th="agent"),
            llm(1, 400, 20, (0.0, 2.0), th="user_simulator"),
            llm(2, 1000, 12, (2.0, 3.0), th="agent"),
            llm(4, 1050, 25, (3.1, 4.0), th="agent"),
            llm(5, 450, 3, (4.0, 5.0), th="user_simulator"),
        ],
        tool_calls=[tool(2, (3.0, 3.1), name="look_up")],
    )


def test_two_llms_of_a_dialogue_take_turns_in_one_thread(imported: Any) -> None:
    found = imported(dialogue())
    assert found.starts[0].type == "tau2-bench-retail"
    assert found.shape == ["llm_call", "llm_call", "tool_start", "tool_end", "llm_call", "llm_call"]
    user, agent, agent_again, user_again = found.calls
    assert [call.agent for call in found.calls] == ["user_simulator", "agent", "agent", "user_simulator"]
    assert agent_again.prompt.base == agent.call
    assert user_again.prompt.base == user.call
    assert [call.prompt.tokens for call in found.calls] == [400, 1000, 1050, 450]


def test_what_one_says_is_in_the_other_ones_prompt_as_the_same_content(imported: Any) -> None:
    found = imported(dialogue())
    user, agent, agent_again, user_again = found.calls
    assert (user.output, 0, user.output_tokens) in found.whole(agent)
    assert (agent_again.output, 0, agent_again.output_tokens) in found.whole(user_again)


def test_the_scenario_of_the_user_belongs_to_the_task_and_not_to_the_fixed_prompt(imported: Any) -> None:
    longer = dialogue() | {"session_id": "longer", "group": "issue-2"}
    longer["llm_calls"][1]["in_tok"] = 700
    shorter = dialogue() | {"session_id": "shorter", "group": "issue-3"}
    found = imported(dialogue(), longer, shorter)
    users = [call for call in found.calls if call.agent == "user_simulator" and call.prompt.base is None]
    fixed = {call.prompt.add[0] for call in users}
    assert len(fixed) == 1
    assert {call.fixed_tokens for call in users} == {next(iter(fixed)).tokens}
    assert users[1].prompt.add[1].tokens == 300
    assert isinstance(users[0], LLMCall)


def test_a_session_with_threads_that_begin_each_other_is_reported(imported: Any) -> None:
    broken = with_side_thread(None)
    broken["messages"].append(message("assistant", "more", 6.0, "side:2"))
    broken["llm_calls"].append(llm(6, 70, 5, (5.0, 6.0), th="side:2"))
    parents = {"side:1": "side:2", "side:2": "side:1"}
    broken["threads"] = {name: {"parent": parent} for name, parent in parents.items()}
    found = imported(broken, growing() | {"session_id": "later"})
    assert [start.workflow for start in found.starts] == ["later"]
    assert [each.line for each in found.bad] == [1]
    assert found.bad[0].problem == "threads: nothing that leads back to 'main' begins 'side:1', 'side:2'"
