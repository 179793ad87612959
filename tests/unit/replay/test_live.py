"""What programs hold at a time, for the sizes of tiers."""

from __future__ import annotations

from kvflow.replay.live import live_tokens, longest_request
from kvflow.trace import MAIN_THREAD, LLMCall, Piece, Program, Prompt, WorkflowStart
from tests.unit.replay.test_work import made


def conversation(*calls: tuple[str, int], fixed_tokens: int | None = None) -> Program:
    """Agents that answer 50 tokens in turn; each reads so many tokens of what has been said."""
    events: list[LLMCall] = []
    for number, (agent, read_tokens) in enumerate(calls):
        said = (Piece("task", 100), *(Piece(f"said {index}", 50) for index in range(number)))
        add: list[Piece] = []
        for piece in said:
            left = read_tokens - sum(each.tokens for each in add)
            if left > 0:
                add.append(Piece(piece.content, min(left, piece.tokens)))
        prompt = Prompt(add=tuple(add))
        common = {"workflow": "w", "agent": agent, "call": f"c{number}", "output": f"said {number}"}
        events.append(LLMCall(**common, prompt=prompt, output_tokens=50, fixed_tokens=fixed_tokens))
    return Program(start=WorkflowStart(workflow="w", type="talk"), threads={MAIN_THREAD: [*events]})


def test_a_context_is_live_until_its_agent_has_run_for_the_last_time() -> None:
    (program,) = made("fan", 1, fixed_tokens=100, task_tokens=10, output_tokens=10, turns=1)
    longest: dict[str, int] = {}
    for call in program.calls:
        longest[call.agent] = call.prompt.tokens + call.output_tokens
    assert longest_request([program]) < live_tokens([program]) < sum(longest.values())


def test_threads_are_live_side_by_side_until_they_are_joined() -> None:
    (program,) = made("fan", 1, fixed_tokens=1, task_tokens=100, output_tokens=100, turns=1)
    spawned = [name for name in program.threads if name != MAIN_THREAD]
    assert len(spawned) > 1
    longest = [
        max(call.prompt.tokens + call.output_tokens for call in program.calls if call.thread == name)
        for name in spawned
    ]
    assert live_tokens([program]) >= sum(longest)


def test_fixed_prompts_of_a_role_are_live_once() -> None:
    work = made("chain", 4, fixed_tokens=1000, task_tokens=10, output_tokens=10, turns=1)
    agents = {call.agent for program in work for call in program.calls}
    assert 1000 * len(agents) < live_tokens(work) < 1000 * len(agents) * 2
    assert live_tokens(work, 2) < live_tokens(work)
    assert longest_request(work) > 1000


def test_agents_of_one_conversation_hold_it_once() -> None:
    turns = [("a", 100), ("b", 150), ("a", 200), ("b", 250)]
    assert live_tokens([conversation(*turns)]) == 300
    assert live_tokens([conversation(*turns, fixed_tokens=100)]) == 2 * 100 + 200, (
        "each role's prompt, and what follows"
    )


def test_agents_of_which_one_reads_less_have_in_common_what_both_read() -> None:
    turns = [("a", 100), ("b", 130), ("a", 100), ("b", 130)]
    assert live_tokens([conversation(*turns)]) == 150 + 180 - 100
