"""Playing a trace's programs against a real server, as :mod:`kvflow.sim.client` does against the simulated one."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from kvflow.engine import Accounting, Tier, digests
from kvflow.graph import END
from kvflow.hints import envelope, step_action, tool_action
from kvflow.trace import MAIN_THREAD, Join, LLMCall, Piece, Program, Spawn, ThreadEvent, ToolEnd, ToolStart


@dataclass(slots=True)
class Observed:
    """What the clients see; they count recomputed tokens page by page, as the simulator does with so little memory.

    Attributes:
        completion_s: time of every program, by workflow id.
        answers: ids of what the model said, by workflow id and call.
    """

    page_tokens: int
    accounting: Accounting = field(init=False)
    ttft_s: list[float] = field(default_factory=list)
    completion_s: dict[str, float] = field(default_factory=dict)
    answers: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accounting = Accounting(self.page_tokens)


class Texts:
    """Token ids of contents; an answer's are what the model said."""

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = {}

    def ids(self, pieces: tuple[Piece, ...]) -> list[int]:
        spelled: list[int] = []
        for piece in pieces:
            known = self._known.setdefault(piece.content, [])
            if len(known) < piece.offset + piece.tokens:
                own = random.Random(piece.content)
                known[:] = [own.randrange(10, 250) for _ in range(piece.offset + piece.tokens)]
            spelled += known[piece.offset : piece.offset + piece.tokens]
        return spelled


class Runner:
    """Plays programs against a server.

    Args:
        client: whose base address is the server's.
        page_tokens: its page size.
        hints: tell it what the programs do.
        longest_s: no tool or pause takes longer.
    """

    def __init__(
        self, client: httpx.AsyncClient, page_tokens: int, *, hints: bool = True, longest_s: float = 1.5
    ) -> None:
        self.observed = Observed(page_tokens)
        self.client = client
        self.hints = hints
        self.longest_s = longest_s
        self.texts = Texts()

    async def work(self, supply: Iterator[tuple[int, Program]]) -> None:
        """Play programs one after the other."""
        for order, program in supply:
            began_s = time.perf_counter()
            run = _Run(self, program, f"{order}:{program.start.workflow}")
            await run.thread(MAIN_THREAD, run.workflow_id, program.start.type)
            await asyncio.gather(*run.threads.values())
            await run.say(step_action(workflow_id=run.workflow_id, agent=END))
            self.observed.completion_s[run.workflow_id] = time.perf_counter() - began_s


class _Run:
    """One workflow under way."""

    def __init__(self, runner: Runner, program: Program, workflow_id: str) -> None:
        self.workflow_id = workflow_id
        self.threads: dict[str, asyncio.Task[None]] = {}
        self._runner = runner
        self._program = program
        self._contexts: dict[str, list[int]] = {}

    async def say(self, *actions: dict[str, Any]) -> None:
        if self._runner.hints:
            (await self._runner.client.post("/kvflow/v1/events", json=envelope(list(actions)))).raise_for_status()

    async def thread(self, name: str, workflow_id: str, workflow_type: str) -> None:
        events = self._program.threads.get(name, [])
        seconds = {event.tool_call: event.seconds or 0.0 for event in events if isinstance(event, ToolEnd)}
        ends_s: dict[str, float] = {}
        tools: dict[str, dict[str, Any]] = {}
        step = _Step(workflow_id, workflow_type, None if workflow_id == self.workflow_id else self.workflow_id)
        for event in events:
            match event:
                case LLMCall():
                    await self._call(event, step)
                case ToolStart():
                    ends_s[event.tool_call] = time.perf_counter() + min(
                        seconds[event.tool_call], self._runner.longest_s
                    )
                    fields = {"workflow_id": workflow_id, "agent": step.agent or event.agent, "tool": event.tool}
                    tools[event.tool_call] = fields | {"verb": event.verb, "call_id": event.tool_call}
                    await self.say(tool_action(event="start", **tools[event.tool_call]))
                case ToolEnd():
                    await asyncio.sleep(max(0.0, ends_s[event.tool_call] - time.perf_counter()))
                    await self.say(tool_action(event="end", **tools[event.tool_call]))
                case Spawn():
                    child = self._program.threads[event.child]
                    agent = next(e.agent for e in child if isinstance(e, LLMCall))
                    began = self.thread(event.child, f"{self.workflow_id}/{event.child}", f"{workflow_type}/{agent}")
                    self.threads[event.child] = asyncio.create_task(began)
                case Join():
                    await self.threads[event.child]
        if workflow_id != self.workflow_id:
            await self.say(step_action(workflow_id=workflow_id, agent=END))

    async def _call(self, call: LLMCall, step: _Step) -> None:
        if call.delay_s:
            await asyncio.sleep(min(call.delay_s, self._runner.longest_s))
        observed = self._runner.observed
        before = self._contexts[call.prompt.base] if call.prompt.base is not None else []
        ids = before[: call.prompt.keep_tokens] + self._runner.texts.ids(call.prompt.add)
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": call.output_tokens, "temperature": 0, "ignore_eos": True},
            "stream": True,
        }
        if self._runner.hints:
            body["kv_hints"] = envelope(step.enter(call))
        began_s = time.perf_counter()
        answer: dict[str, Any] = {}
        first_s = 0.0
        async with self._runner.client.stream("POST", "/generate", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    answer = json.loads(line[len("data: ") :])
                    if not first_s:
                        first_s = time.perf_counter() - began_s
                        hits = {Tier.DEVICE: answer["meta_info"]["cached_tokens"]}
                        observed.accounting.prompt(len(ids), digests(ids, "", observed.page_tokens), hits)
        observed.ttft_s.append(first_s)
        observed.answers[self.workflow_id, call.call] = tuple(answer["output_ids"])
        context = self._contexts[call.call] = ids + answer["output_ids"]
        observed.accounting.cached(digests(context[:-1], "", observed.page_tokens))


@dataclass(slots=True)
class _Step:
    """The facts that tell of a thread's steps, as in the simulator."""

    workflow_id: str
    workflow_type: str
    parent_id: str | None
    agent: str | None = None
    count: int = 0

    def enter(self, call: LLMCall) -> list[dict[str, Any]]:
        facts = []
        if call.agent != self.agent:
            if self.agent is not None:
                facts.append(self._fact(self.agent, "end", None))
            self.agent = call.agent
            self.count += 1
        facts.append(self._fact(call.agent, "start", call.fixed_tokens))
        return facts

    def _fact(self, agent: str, event: str, fixed_tokens: int | None) -> dict[str, Any]:
        return step_action(
            workflow_id=self.workflow_id,
            workflow_type=self.workflow_type,
            parent_workflow_id=self.parent_id,
            agent=agent,
            step_id=f"{self.count}:{agent}",
            event=event,
            fixed_prompt_tokens=fixed_tokens,
        )


def scaled(program: Program, factor: float) -> Program:
    """A program with contexts, answers, tools and pauses of a fraction of their size; what is shared stays shared."""
    return replace(program, threads=_Scaler(factor).threads(program))


class _Scaler:
    """Scales a program call by call, because a prompt keeps part of an earlier one's context.

    Contents are scaled by position, so that two slices of one content still meet where they met.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._tokens: dict[str, tuple[int, int]] = {}

    def threads(self, program: Program) -> dict[str, list[ThreadEvent]]:
        """All events of a program. A thread may continue a context of one before it."""
        return {name: [self._event(event) for event in events] for name, events in program.threads.items()}

    def _event(self, event: ThreadEvent) -> ThreadEvent:
        if isinstance(event, ToolEnd) and event.seconds is not None:
            return event.model_copy(update={"seconds": event.seconds * self._factor})
        return self._call(event) if isinstance(event, LLMCall) else event

    def _call(self, call: LLMCall) -> LLMCall:
        prompt = call.prompt
        kept = 0
        if prompt.base is not None:
            before, after = self._tokens[prompt.base]
            kept = after if prompt.keep_tokens >= before else min(after, self._position(prompt.keep_tokens))
        pieces = []
        for piece in prompt.add:
            start, end = self._position(piece.offset), self._position(piece.offset + piece.tokens)
            if end > start:
                pieces.append(Piece(piece.content, end - start, start))
        if not kept and not pieces:
            pieces = [Piece(prompt.add[0].content, 1, 0)] if prompt.add else []
        output_tokens = max(1, self._position(call.output_tokens))
        tokens = kept + sum(piece.tokens for piece in pieces)
        self._tokens[call.call] = (prompt.tokens + call.output_tokens, tokens + output_tokens)
        return call.model_copy(
            update={
                "prompt": prompt.model_copy(update={"keep_tokens": kept, "add": tuple(pieces)}),
                "output_tokens": output_tokens,
                "fixed_tokens": None if call.fixed_tokens is None else self._position(call.fixed_tokens),
                "delay_s": None if call.delay_s is None else call.delay_s * self._factor,
            }
        )

    def _position(self, tokens: int) -> int:
        return int(tokens * self._factor)
