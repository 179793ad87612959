"""Programs scaled down for a small server keep their shape."""

from __future__ import annotations

import pytest

from kvflow.replay.scaling import scaled
from kvflow.sim import SimSettings, load_profile, simulate
from kvflow.trace import (
    Join,
    LLMCall,
    Piece,
    Program,
    Prompt,
    Spawn,
    SynthOptions,
    ThreadEvent,
    ToolEnd,
    WorkflowStart,
    programs,
    synthetic_trace,
)
from kvflow.trace.synth import KINDS

FACTOR = 0.1


def made(kind: str) -> list[Program]:
    options = SynthOptions(workflows=4, fixed_tokens=1000, task_tokens=3000, output_tokens=200, seed=5)
    return list(programs(synthetic_trace(kind, options)[1]))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_call_has_a_tenth_of_its_tokens(kind: str) -> None:
    for program in made(kind):
        small = scaled(program, FACTOR, FACTOR)
        assert [call.call for call in small.calls] == [call.call for call in program.calls]
        for before, after in zip(program.calls, small.calls, strict=True):
            assert after.prompt.tokens == pytest.approx(FACTOR * before.prompt.tokens, abs=40)
            assert abs(after.output_tokens - FACTOR * before.output_tokens) <= 1
            assert (after.fixed_tokens or 0) <= after.prompt.tokens


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_prompt_keeps_more_than_there_was(kind: str) -> None:
    for program in made(kind):
        contexts: dict[str, int] = {}
        for call in scaled(program, FACTOR, FACTOR).calls:
            if call.prompt.base is not None:
                assert call.prompt.keep_tokens <= contexts[call.prompt.base]
            contexts[call.call] = call.prompt.tokens + call.output_tokens


def test_a_thread_may_continue_what_a_later_one_has_begun() -> None:
    def call(name: str, *, base: str | None = None, keep_tokens: int = 0) -> LLMCall:
        prompt = Prompt(base=base, keep_tokens=keep_tokens, add=(Piece("new", 100),))
        return LLMCall(
            workflow="w", t=0.0, call=name, agent="a", prompt=prompt, output=f"answer {name}", output_tokens=50
        )

    main = [
        call("c1"),
        Spawn(workflow="w", t=0.0, child="child"),
        Join(workflow="w", t=0.0, child="child"),
        call("c3", base="c2", keep_tokens=150),
    ]
    threads = {"main": main, "child": [call("c2")]}
    program = Program(start=WorkflowStart(workflow="w", t=0.0, type="t"), threads=threads, ended=True)
    last = scaled(program, FACTOR, FACTOR).threads["main"][-1]
    assert isinstance(last, LLMCall)
    assert last.prompt.keep_tokens == 15


def test_a_prompt_keeps_the_pieces_it_kept() -> None:
    """Each of them is scaled by itself, so that what is kept is a tenth only about."""
    pieces = tuple(Piece(f"slice {number}", 15, 7) for number in range(10))

    def call(name: str, prompt: Prompt) -> LLMCall:
        return LLMCall(workflow="w", call=name, agent="a", prompt=prompt, output=f"answer {name}", output_tokens=50)

    events: list[ThreadEvent] = [
        call("c1", Prompt(add=pieces)),
        call("c2", Prompt(base="c1", keep_tokens=75, add=(Piece("new", 100),))),
        call("c3", Prompt(base="c2", keep_tokens=60, add=(Piece("other", 100),))),
        call("c4", Prompt(base="c2", keep_tokens=200, add=(Piece("more", 100),))),
    ]
    small = scaled(Program(start=WorkflowStart(workflow="w", type="t"), threads={"main": events}), FACTOR, 1.0)
    first, *others = small.calls
    tokens = [piece.tokens for piece in first.prompt.add]
    assert set(tokens) == {1, 2}
    assert [call.prompt.keep_tokens for call in others[:2]] == [sum(tokens[:5]), sum(tokens[:4])]
    assert others[2].prompt.keep_tokens - others[0].prompt.tokens in (2, 3), "of the answer half"


def short_pieces(fixed_tokens: int | None = None) -> LLMCall:
    """A prompt of 200 messages of 15 tokens, as it is played at a twentieth of its size."""
    prompt = Prompt(add=tuple(Piece(f"message {number}", 15) for number in range(200)))
    call = LLMCall(
        workflow="w", call="c", agent="a", prompt=prompt, output="o", output_tokens=50, fixed_tokens=fixed_tokens
    )
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads={"main": [call]})
    (small,) = scaled(program, 0.05, 1.0).calls
    return small


def test_many_short_pieces_are_a_fraction_of_what_they_were() -> None:
    assert short_pieces().prompt.tokens == pytest.approx(150, abs=15)


@pytest.mark.parametrize("messages", [1, 10, 77, 200])
def test_what_is_fixed_is_what_has_become_of_it(messages: int) -> None:
    small, names = short_pieces(15 * messages), [f"message {number}" for number in range(messages)]
    assert small.fixed_tokens == sum(piece.tokens for piece in small.prompt.add if piece.content in names)


def prompts(*added: tuple[Piece, ...], factor: float) -> list[Prompt]:
    """Prompts of which each begins afresh, scaled."""
    events: list[ThreadEvent] = [
        LLMCall(workflow="w", call=f"c{n}", agent="a", prompt=Prompt(add=add), output=f"o{n}", output_tokens=9)
        for n, add in enumerate(added)
    ]
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads={"main": events})
    return [call.prompt for call in scaled(program, factor, 1.0).calls]


@pytest.mark.parametrize("length", [1, 2, 4, 30])
def test_agents_that_begin_differently_still_do(length: int) -> None:
    task = Piece("task", 2000)
    agents = [(Piece(f"You are {name}", length), task) for name in ("Planner", "Coder", "Planner")]
    planner, coder, again = prompts(*agents, factor=0.02)
    assert planner == again
    assert [piece.content for piece in coder.add] == ["You are Coder", "task"]
    assert planner.tokens <= 42
    assert {planner.add[1], coder.add[1]} == {planner.add[1]}, "what follows is the same as before"


def test_slices_of_one_content_that_come_first_stay_different() -> None:
    """As the blocks of block hashes are, all of one content."""
    blocks = [(Piece("blocks:x", 64, 64 * number), Piece("task", 5000)) for number in (7, 8, 9, 8)]
    first, second, third, again = (prompt.add[0] for prompt in prompts(*blocks, factor=0.01))
    assert len({first, second, third}) == 3
    assert len({piece.content for piece in (first, second, third)}) == 3
    assert again == second


def test_what_is_kept_of_a_short_beginning_is_what_has_become_of_it() -> None:
    add = (Piece("You are Planner", 4), Piece("task", 2000))
    events: list[ThreadEvent] = [
        LLMCall(
            workflow="w", call="c1", agent="a", prompt=Prompt(add=add), output="o", output_tokens=9, fixed_tokens=4
        ),
        LLMCall(
            workflow="w",
            call="c2",
            agent="a",
            prompt=Prompt(base="c1", keep_tokens=4, add=(Piece("next", 1000),)),
            output="p",
            output_tokens=9,
        ),
    ]
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads={"main": events})
    first, second = scaled(program, 0.02, 1.0).calls
    assert first.prompt.add[0].tokens == first.fixed_tokens == second.prompt.keep_tokens > 0


def test_what_workflows_share_they_still_share() -> None:
    work = [scaled(program, FACTOR, FACTOR) for program in made("react")]
    settings = SimSettings(policy="lru", device_tokens=1_000_000, concurrency=1, page_tokens=16)
    counters = simulate(work, load_profile("a100"), settings).counters
    assert counters.hit_tokens["device"] > 0.4 * counters.prompt_tokens


def test_tools_take_a_tenth_of_their_time() -> None:
    for program in made("react"):
        before, after = (
            [event.seconds for events in one.threads.values() for event in events if isinstance(event, ToolEnd)]
            for one in (program, scaled(program, FACTOR, FACTOR))
        )
        assert after == [None if seconds is None else pytest.approx(FACTOR * seconds) for seconds in before]
