"""LLM calls with the text of their prompts."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.trace.importers.prompts import common_characters

LONG = "".join(chr(97 + i % 26) for i in range(700))  # 200 tokens


def session(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"session_id": "s", "group": "g", "source": "x/y", "agent": "mini-swe-agent", "calls": list(calls), **fields}


def call(suffix: str, output: str = "", shared: int = 0, t: float | None = None) -> dict[str, Any]:
    return {"t": t, "shared": shared, "suffix": suffix, "output": output}


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ("", "", 0),
        ("abc", "abd", 2),
        ("abc", "abc", 3),
        ("abc", "abcd", 3),
        ("x", "y", 0),
        ("a" * 99 + "b", "a" * 99, 99),
    ],
)
def test_common_characters(one: str, other: str, count: int) -> None:
    assert common_characters(one, other) == count == common_characters(other, one)


def test_a_prompt_keeps_the_tokens_it_shares_with_the_call_before(imported: Any) -> None:
    found = imported(session(call(LONG, "ok", t=0.0), call("more" * 35, "ok", 700, 1.5), call("other", "", 350, 2.0)))
    one, two, three = found.calls
    assert [call.prompt.tokens for call in found.calls] == [200, 240, 101]
    assert (two.prompt.base, two.prompt.keep_tokens) == (one.call, 200)
    assert (three.prompt.base, three.prompt.keep_tokens) == (two.call, 100)
    assert (one.t, one.delay_s, one.llm_s, one.output_tokens, three.output_tokens) == (0.0, None, None, 1, 0)
    assert found.starts[0].type == "mini-swe-agent"
    assert found.tool_ends == []


def test_an_answer_that_comes_next_in_the_prompt_is_kept(imported: Any) -> None:
    answer = "Thought: look there\n"
    found = imported(
        session(call(LONG, answer), call(f"\n\nassistant: {answer}\n\nuser: go on", "", 700), call("!", "", 733))
    )
    one, two, _ = found.calls
    assert (two.prompt.base, two.prompt.keep_tokens) == (one.call, 200 + one.output_tokens)
    assert len(two.prompt.add) == 1


def test_prompts_that_begin_alike_share_contents_across_sessions(imported: Any) -> None:
    found = imported(session(call(LONG + "one")), session(call(LONG + "two")))
    one, two = found.calls
    assert one.prompt.add[:2] == two.prompt.add[:2]
    assert one.prompt.add[2] != two.prompt.add[2]
    assert [piece.tokens for piece in one.prompt.add] == [80, 80, 41]


def test_agents_show_in_the_first_words_and_continue_their_own_calls(imported: Any) -> None:
    ledger = "assistant: We are working to address the following user request:\n\n" + LONG
    coder = (
        "system: You are a helpful AI assistant.\nSolve tasks using your coding and language skills.\n\nuser: " + LONG
    )
    found = imported(
        session(
            call(ledger, "{}"),
            call(coder, "code"),
            call("", "browse"),
            call(ledger + "!", "{}"),
            call(coder + "!", "code"),
            agent="Magentic-One (AutoGen)",
        )
    )
    names = ["Orchestrator", "Coder", "WebSurfer", "Orchestrator", "Coder"]
    assert [call.agent for call in found.calls] == names
    plan, code, browse, plan_again, code_again = found.calls
    assert (plan_again.prompt.base, code_again.prompt.base) == (plan.call, code.call)
    assert browse.prompt.tokens == 1
    assert code.fixed_tokens == 25  # up to the user's message
    assert plan.fixed_tokens is None
    assert found.starts[0].type == "magentic-one"


def test_a_system_prompt_of_the_row_is_in_front_of_every_prompt(imported: Any) -> None:
    found = imported(
        session(call("do it", "ok"), system_prompt=LONG, framework="HyperAgent", agent="Navigator"),
        session(call("do that", "ok"), system_prompt=LONG, framework="HyperAgent", agent="Navigator"),
    )
    assert [start.type for start in found.starts] == ["hyperagent-navigator"] * 2
    assert [call.fixed_tokens for call in found.calls] == [200, 200]
    assert found.calls[0].prompt.add[0] == found.calls[1].prompt.add[0]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (session(call("abc"), call("", shared=9)), "calls.1.shared: the prompt before it has 3 characters"),
        (session(call("abc", shared=-1)), "calls.0.shared"),
        (session(), "calls"),
        (session({"shared": 0, "output": ""}), "calls.0.suffix"),
    ],
)
def test_a_session_that_cannot_be_used_is_reported(imported: Any, bad: dict[str, Any], problem: str) -> None:
    found = imported(session(call("abc")), bad)
    assert len(found.programs) == 1
    assert problem in found.bad[0].problem
