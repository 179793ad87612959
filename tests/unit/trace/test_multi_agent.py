"""Programs of several agents: group chats, MetaGPT, ChatDev, MARBLE."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.trace import Join, Spawn, ToolStart


def said(agent: str, content: str, to: str | None = None) -> dict[str, Any]:
    return {"agent": agent, "to": to, "content": content, "t": None}


def chat(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "session_id": "s",
        "group": "g",
        "framework": "AG2 CaptainAgent",
        "agents": sorted({step["agent"] for step in steps}),
        "system_prompts": None,
        "steps": list(steps),
        **fields,
    }


def test_in_a_group_chat_everyone_has_seen_everything_and_terminals_are_tools(imported: Any) -> None:
    found = imported(
        chat(
            said("Expert", "the task" * 10),
            said("Expert", "let me see" * 10),
            said("Computer_terminal", "exitcode: 0"),
            said("Checker", "looks good" * 5),
            said("Expert", "done"),
            system_prompts={"Expert": "You know everything." * 9, "Checker": "You doubt everything." * 9},
        )
    )
    assert found.shape == ["llm_call", "tool_start", "tool_end", "llm_call", "llm_call"]
    expert, checker, again = found.calls
    assert [call.agent for call in found.calls] == ["Expert", "Checker", "Expert"]
    assert expert.fixed_tokens == expert.prompt.add[0].tokens > 40
    assert (checker.prompt.base, len(checker.prompt.add)) == (None, 4)
    assert again.prompt.base == expert.call
    assert again.prompt.keep_tokens == expert.prompt.tokens + expert.output_tokens
    tool = next(event for event in found.events if isinstance(event, ToolStart))
    assert (tool.tool, tool.agent) == ("Computer_terminal", "Expert")


def test_what_one_says_in_a_row_is_one_call_and_humans_are_no_llms(imported: Any) -> None:
    found = imported(
        chat(
            said("human", "question"),
            said("Orchestrator", "thought"),
            said("Orchestrator", "go there", "WebSurfer"),
            said("WebSurfer", "been there"),
            said("human", "thanks"),
            framework="Magentic-One",
        )
    )
    assert [call.agent for call in found.calls] == ["Orchestrator", "WebSurfer"]
    one, other = found.calls
    assert one.prompt.add[0] != other.prompt.add[0]  # their own system prompts, which are not in the row
    assert one.fixed_tokens is None
    assert (one.output, 0, one.output_tokens) in found.whole(other)


def test_a_nested_chat_begins_afresh_and_is_summed_up_outside(imported: Any) -> None:
    inner = [
        said("Navigator", "Use the following format", "Navigator Manager"),
        said("Inner-Navigator-Assistant", "Thought: look", "Navigator Manager"),
        said("Navigator Interpreter", "exitcode: 0", "Navigator Manager"),
        said("Inner-Navigator-Assistant", "Thought: found", "Navigator Manager"),
        said("Navigator", "It is there", "repopilot"),
    ]
    found = imported(
        chat(
            said("Admin", "fix it", "repopilot"),
            said("Planner", "find it", "repopilot"),
            *inner,
            said("Planner", "find more", "repopilot"),
            *inner,
        )
    )
    names = ["Planner", "Inner-Navigator-Assistant", "Inner-Navigator-Assistant", "Navigator"]
    assert [call.agent for call in found.calls] == names * 2
    planner, look, look_again, summary, planner_again, look_next, *_ = found.calls
    assert look_again.prompt.base == look.call
    assert (look_again.output, 0, look_again.output_tokens) in found.whole(summary)
    assert (planner.output, 0, planner.output_tokens) not in found.whole(summary)
    assert planner_again.prompt.base == planner.call
    assert found.whole(look_next) == found.whole(look)


def test_a_chat_in_which_no_llm_speaks_is_reported(imported: Any) -> None:
    found = imported(chat(said("human", "hello")), chat(said("human", "hi"), said("Planner", "hi")))
    assert len(found.programs) == 1
    assert "nobody but humans" in found.bad[0].problem


def log(fn: str, t: float, content: str = "", **more: Any) -> dict[str, Any]:
    return {"agent": "Alice(Product Manager)", "fn": fn, "t": t, "content": content, **more}


def metagpt(**fields: Any) -> dict[str, Any]:
    prompt = [{"role": "system", "content": "You are Alice." * 10}, {"role": "user", "content": "write it" * 40}]
    return {
        "session_id": "metagpt:0",
        "group": "run-0",
        "framework": "MetaGPT (0.x, Sept 2023)",
        "steps": [
            log("software_company:run", 0.0),
            log("roles.role:_act", 1.0, "ready to WritePRD"),
            log("provider.openai_api:update_cost", 21.0, in_tok=100, out_tok=50),
            log("provider.base_gpt_api:aask", 21.1, prompt=prompt),
            log("actions.action:_aask_json_v1", 21.2, "[CONTENT]"),
            log("provider.openai_api:update_cost", 41.0, in_tok=120, out_tok=60),
            log("provider.base_gpt_api:aask", 41.1, prompt=[prompt[0], {"role": "user", "content": "x" * 300}]),
        ],
        **fields,
    }


def test_metagpt_logs_calls_when_they_have_ended(imported: Any) -> None:
    found = imported(metagpt(), metagpt(session_id="metagpt:1"))
    first, second, other, _ = found.calls
    assert (first.agent, first.t, first.llm_s, first.delay_s) == ("Alice(Product Manager)", 1.0, 20.0, 1.0)
    assert (second.t, second.llm_s, second.delay_s) == (21.2, 19.8, 0.2)
    assert [call.prompt.tokens for call in (first, second)] == [100, 120]
    assert [call.output_tokens for call in (first, second)] == [50, 60]
    assert second.prompt.base == first.call
    assert second.prompt.keep_tokens == first.fixed_tokens
    assert other.prompt.add == first.prompt.add
    assert found.starts[0].type == "metagpt"


def test_a_run_of_metagpt_without_calls_is_reported(imported: Any) -> None:
    empty = metagpt(steps=[log("software_company:run", 0.0)])
    found = imported(metagpt(), empty)
    assert [(each.line, "no LLM call" in each.problem) for each in found.bad] == [(2, True)]


def line(kind: str, t: float, content: str = "", agent: str | None = None, **more: Any) -> dict[str, Any]:
    return {"agent": agent, "to": None, "kind": kind, "phase": "CodeReview", "t": t, "content": content, **more}


SYSTEM = "[ChatDev is a software company.\nYou are {role}.\nHere is a new customer's task: a game.\nBe brief.]\n\n"


def chatdev(**fields: Any) -> dict[str, Any]:
    return {
        "session_id": "chatdev:game",
        "group": "g",
        "framework": "ChatDev",
        "steps": [
            line("note_Preprocessing", 0),
            line("start_chat", 1, SYSTEM.format(role="Reviewer") + "Review the code." * 20, "Programmer"),
            line("llm_send", 2),
            line("llm_receive", 9, in_tok=200, out_tok=40),
            line("llm_send", 10),
            line("llm_receive", 30, in_tok=260, out_tok=90),
            line("message", 31, SYSTEM.format(role="Programmer") + "Add a test.", "Reviewer"),
            line("message", 31, "**turn 0**\n\n" + SYSTEM.format(role="Reviewer") + "Added it.", "Programmer"),
        ],
        **fields,
    }


def test_chatdev_lets_two_roles_answer_each_other_in_a_phase(imported: Any) -> None:
    found = imported(chatdev())
    review, change = found.calls
    assert [(call.agent, call.t, call.llm_s, call.delay_s) for call in found.calls] == [
        ("Reviewer", 2.0, 7.0, 2.0),
        ("Programmer", 10.0, 20.0, 1.0),
    ]
    assert [(call.prompt.tokens, call.output_tokens) for call in found.calls] == [(200, 40), (260, 90)]
    assert change.prompt.base == review.call  # the company's line, and no more
    assert change.prompt.keep_tokens == review.prompt.add[0].tokens
    assert review.fixed_tokens == sum(piece.tokens for piece in review.prompt.add[:2])
    assert found.starts[0].type == "chatdev"


def test_lines_of_an_http_clients_log_are_no_answers_of_chatdevs(imported: Any) -> None:
    plain, noisy = chatdev(), chatdev()
    log = line("message", 30, "POST https://model.example/v1/chat/completions 200 OK", "HTTP Request")
    noisy["steps"][6:6] = [log]
    noisy["steps"].append(log)
    assert imported(noisy).calls == imported(plain).calls


def test_roles_of_two_runs_share_their_prompts_up_to_the_task(imported: Any) -> None:
    found = imported(chatdev(), chatdev(session_id="chatdev:other"))
    one, _, other, _ = found.calls
    assert one.prompt.add[:2] == other.prompt.add[:2]


def marble(*iterations: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"session_id": "m", "group": "g", "domain": "database", "task": "find the cause" * 9} | {
        "iterations": list(iterations),
        **fields,
    }


def iteration(results: list[dict[str, Any]], summary: str | None = "summary " * 9, **assigned: str) -> dict[str, Any]:
    return {"task_assignments": assigned, "task_results": results, "summary": summary}


CALLED = 'Result from the model:\nResult from the function:{"function_name": "query_db"}'


def test_agents_of_an_iteration_work_side_by_side_and_the_planner_sums_up(imported: Any) -> None:
    found = imported(
        marble(
            iteration([{"agent_id": "a", "result": CALLED}, {"agent_id": "b", "result": "I think so"}], a="<task>"),
            iteration([{"a": "Done."}], summary=None, a="look closer" * 9),
        )
    )
    assert found.starts[0].type == "marble-database"
    spawned = [event.child for event in found.events if isinstance(event, Spawn)]
    joined = [event.child for event in found.events if isinstance(event, Join)]
    assert spawned == joined == ["a/1", "b/1", "a/2"]
    first, second, planner, third = found.calls
    assert [call.agent for call in found.calls] == ["a", "b", "planner", "a"]
    assert (planner.thread, len(planner.prompt.add)) == ("main", 4)
    assert first.output_tokens == 30
    assert [event.tool for event in found.events if isinstance(event, ToolStart)] == ["query_db"]
    assert first.prompt.add[1] == second.prompt.add[1] == third.prompt.add[1]
    assert (len(first.prompt.add), len(third.prompt.add)) == (2, 3)


def test_both_results_of_an_agent_in_one_iteration_of_marble_are_calls(imported: Any) -> None:
    results = [{"agent_id": "a", "result": f"Result from the model: {text}"} for text in ("one", "two")]
    found = imported(marble(iteration(results)))
    assert [call.agent for call in found.calls if call.agent == "a"] == ["a", "a"]


@pytest.mark.parametrize("bad", [marble(), marble(iteration([])), marble(iteration([{"agent_id": 1}]))])
def test_a_run_of_marble_without_results_is_reported(imported: Any, bad: dict[str, Any]) -> None:
    found = imported(marble(iteration([{"a": "Done."}])), bad)
    assert (len(found.programs), len(found.bad)) == (1, 1)
    assert "iterations" in found.bad[0].problem
