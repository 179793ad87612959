"""Playing programs in a closed loop: each thread of a program waits for what its trace says it waits for."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

from kvflow.engine import Accounting, digests
from kvflow.hints.fields import MAX_IDENTIFIER, MAX_NAME
from kvflow.replay.connection import Answer, Connection
from kvflow.replay.contents import Contents
from kvflow.replay.facts import Steps
from kvflow.replay.record import CallRecord, Round, ToolRecord, WorkflowRecord
from kvflow.replay.texts import Texts, cut, following, reuse_action
from kvflow.replay.work import Pace
from kvflow.trace import MAIN_THREAD, Join, LLMCall, Piece, Program, Spawn, ToolEnd, ToolStart


@dataclass(frozen=True, slots=True)
class _Context:
    """Prompt and answer of a call, digests of their full pages, and the texts they consist of."""

    tokens: array[int]
    chain: list[int]
    texts: Texts = ()


@dataclass(slots=True)
class _Prompt:
    """A prompt under way.

    Attributes:
        texts: it consists of.
        begins: digests that are known already of its first full pages.
        chain: those of all, once it has been computed.
        known_tokens: how many of its tokens had been computed by then for others.
    """

    tokens: array[int]
    texts: Texts
    begins: list[int]
    chain: list[int] = field(default_factory=list)
    known_tokens: int = 0

    def computed(self, accounting: Accounting) -> None:
        """Its first token has come: whatever comes after that, and computes it again, has been too late for it."""
        self.chain = digests(self.tokens, "", accounting.unit_tokens, self.begins)
        self.known_tokens = accounting.known(self.chain, 0)
        accounting.cached(self.chain)


class Player:
    """Plays programs, and enters what was seen in a round's record.

    Args:
        page_tokens: the server's page size, by which tokens computed again are told from new ones.
        answered: called after every call.
    """

    def __init__(
        self,
        connection: Connection,
        seen: Round,
        contents: Contents,
        pace: Pace,
        page_tokens: int,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self.connection = connection
        self.seen = seen
        self.contents = contents
        self.pace = pace
        self.page_tokens = page_tokens
        self.answered = answered
        self.accounting = Accounting(page_tokens, ghost_pages=4_000_000)

    async def play(self, program: Program, workflow_id: str, arrived_s: float) -> None:
        """Play one program from start to end."""
        run = _Run(self, program, workflow_id)
        started_s = self.connection.now_s()
        await run.thread(MAIN_THREAD, started_s)
        ended_s = self.connection.now_s()
        await self.connection.over(workflow_id)
        self.seen.workflows.append(
            WorkflowRecord(
                workflow=workflow_id,
                arrived_s=arrived_s,
                started_s=started_s,
                ended_s=ended_s,
                failed_calls=run.failed,
            )
        )


@dataclass(slots=True)
class _Thread:
    """A thread under way.

    Attributes:
        due_s: when its next event may happen.
        waited_s: when the calls and threads were over that its latest events waited for; None if those were others.
    """

    name: str
    steps: Steps
    due_s: float
    ends_s: dict[str, float] = field(default_factory=dict)
    started: dict[str, tuple[ToolStart, float]] = field(default_factory=dict)
    waited_s: float | None = None


class _Run:
    """One workflow under way."""

    def __init__(self, player: Player, program: Program, workflow_id: str) -> None:
        self.threads: dict[str, asyncio.Task[None]] = {}
        self.failed = 0
        self._player = player
        self._connection = player.connection
        self._program = program
        self._workflow_id = workflow_id
        self._spawned: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._over_s: dict[str, float] = {}
        self._contexts: dict[str, asyncio.Future[_Context]] = {}
        self._uses = Counter(call.prompt.base for call in program.calls)

    async def thread(self, name: str, due_s: float) -> None:
        """Play one thread."""
        events = self._program.threads.get(name, [])
        ends = {event.tool_call: event for event in events if isinstance(event, ToolEnd)}
        thread = _Thread(name, self._steps(name), due_s)
        for event in events:
            waited_s, thread.waited_s = thread.waited_s, None
            match event:
                case LLMCall():
                    await self._call(event, thread)
                case ToolStart():
                    self._tool_starts(event, ends.get(event.tool_call), thread)
                case ToolEnd():
                    await self._tool_ends(event, thread, waited_s)
                case Spawn():
                    self.threads[event.child] = asyncio.create_task(self.thread(event.child, thread.due_s))
                    self._spawned[event.child].set()
                case Join():
                    await self._spawned[event.child].wait()  # by another thread, which may be late
                    await self.threads[event.child]
                    thread.due_s = max(thread.due_s, self._connection.now_s())
                    thread.waited_s = max(waited_s or 0.0, self._over_s[event.child])
                case _:
                    pass
        self._over_s[name] = thread.due_s
        if name == MAIN_THREAD:
            await self._others()
        self._connection.say(self._workflow_id, thread.steps.ends())

    async def _others(self) -> None:
        """Wait for the threads that nobody joins, which may begin others: the workflow is not over before."""
        awaited = 0
        while awaited < len(self.threads):
            awaited = len(self.threads)
            await asyncio.gather(*self.threads.values())

    def _steps(self, thread: str) -> Steps:
        """A thread of its own is a workflow below the program's, of a type named after its first agent."""
        workflow_type = self._program.start.type[:MAX_NAME]
        tenant = (self._program.start.tenant or "")[:MAX_NAME] or None
        if thread == MAIN_THREAD:
            return Steps(self._workflow_id, workflow_type, tenant=tenant)
        calls = (event for event in self._program.threads[thread] if isinstance(event, LLMCall))
        agent = next((call.agent for call in calls), thread)
        child_id = f"{self._workflow_id[: MAX_IDENTIFIER // 2]}/{thread}"[:MAX_IDENTIFIER]
        return Steps(child_id, f"{workflow_type}/{agent}"[:MAX_NAME], self._workflow_id, tenant)

    def _tool_starts(self, event: ToolStart, end: ToolEnd | None, thread: _Thread) -> None:
        start_s = max(thread.due_s, self._connection.now_s())
        thread.started[event.tool_call] = event, start_s
        if end is not None:
            thread.ends_s[event.tool_call] = start_s + self._player.pace.of_tool(end)
        self._connection.say(self._workflow_id, thread.steps.tool(event, "start"))

    async def _tool_ends(self, event: ToolEnd, thread: _Thread, waited_s: float | None) -> None:
        """Wait for a tool; one that has waited itself, for calls or threads, goes on from then."""
        start, start_s = thread.started[event.tool_call]
        end_s = thread.ends_s[event.tool_call]
        if waited_s is not None:
            end_s = max(end_s, waited_s + self._player.pace.of_tool(event))
        await asyncio.sleep(end_s - self._connection.now_s())
        thread.due_s = max(thread.due_s, end_s)
        record = ToolRecord(
            workflow=self._workflow_id,
            thread=thread.name,
            tool=start.tool,
            start_s=start_s,
            end_s=self._connection.now_s(),
        )
        self._player.seen.tools.append(record)
        took_s = round(max(0.0, record.end_s - start_s), 3)
        self._connection.say(self._workflow_id, thread.steps.tool(start, "end", took_s))

    async def _call(self, call: LLMCall, thread: _Thread) -> None:
        base = await self._base(call, thread)
        thread.due_s += self._player.pace.of_pause(call)
        await asyncio.sleep(thread.due_s - self._connection.now_s())
        kept = call.prompt.keep_tokens
        tokens = self._player.contents.prompt(base.tokens[:kept], call.prompt.add)
        texts = following(cut(base.texts, kept), call.prompt.add, kept)
        prompt = _Prompt(tokens, texts, base.chain[: kept // self._player.page_tokens])
        recorded = array("q")
        if call.output_tokens:
            recorded = self._player.contents.tokens(Piece(call.output, call.output_tokens))
        hints = thread.steps.asks(call)
        if self._connection.arm.reuse:
            hints.append(reuse_action(texts, call.fixed_tokens or 0))
        seen = CallRecord(
            workflow=self._workflow_id,
            thread=thread.name,
            agent=call.agent,
            call=call.call,
            asked_s=self._connection.now_s(),
        )
        seen.late_s = seen.asked_s - thread.due_s
        computed = partial(prompt.computed, self._player.accounting)
        answer = await self._connection.ask(tokens, recorded, hints, seen, computed)
        self._enter(call, seen, prompt, recorded, answer)
        thread.due_s = thread.waited_s = seen.ended_s

    async def _base(self, call: LLMCall, thread: _Thread) -> _Context:
        """The context a prompt continues; one of another thread may have to be waited for."""
        base = call.prompt.base
        if base is None:
            return _Context(array("q"), [])
        future = self._future(base)
        if not future.done():
            await future
            thread.due_s = max(thread.due_s, self._connection.now_s())
        self._uses[base] -= 1
        if not self._uses[base]:
            del self._contexts[base]  # whole contexts of every call would be a lot of memory
        return future.result()

    def _future(self, call: str) -> asyncio.Future[_Context]:
        return self._contexts.setdefault(call, asyncio.get_running_loop().create_future())

    def _enter(
        self, call: LLMCall, seen: CallRecord, prompt: _Prompt, recorded: array[int], answer: Answer | None
    ) -> None:
        if seen.error:
            self.failed += 1
        if answer is not None:
            seen.recomputed_tokens = max(0, prompt.known_tokens - sum(answer.cached.values()))
            if recorded or self._connection.free:  # what was only generated for want of an answer says nothing
                self._digest(call.call, answer)
        # What follows a call that failed goes on as it is recorded.
        kept = answer is not None and answer.tokens and not seen.error
        whole = prompt.tokens + (answer.tokens if answer is not None and kept else recorded)
        chain = digests(whole, "", self._player.page_tokens, prompt.chain or prompt.begins)
        context = _Context(whole, chain, (*prompt.texts, (len(prompt.tokens), len(whole))))
        if answer is not None:
            self._player.accounting.cached(context.chain)
        if self._uses[call.call]:
            self._future(call.call).set_result(context)
        self._player.seen.calls.append(seen)
        self._player.answered()

    def _digest(self, call: str, answer: Answer) -> None:
        """Sum up what was answered; the order in which calls end does not count."""
        seen = self._player.seen
        own = crc32(answer.tokens.tobytes(), crc32(f"{self._workflow_id} {call}".encode()))
        seen.answers = f"{int(seen.answers or '0', 16) ^ own:08x}"


async def arrive(player: Player, work: list[tuple[float, Program, str]], at_once: int | None) -> None:
    """Play programs as they arrive, and enter how long that took from the first arrival on.

    Args:
        player: of the round.
        work: arrival in seconds since the round began, program and workflow id, in order of arrival.
        at_once: no more than so many run at a time; those that arrive later wait their turn. None: all may.
    """
    free = asyncio.Semaphore(at_once or len(work) or 1)

    async def one(arrival_s: float, program: Program, workflow_id: str) -> None:
        await asyncio.sleep(arrival_s - player.connection.now_s())
        async with free:
            await player.play(program, workflow_id, arrival_s)

    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(one(*each))
    if work:
        player.seen.span_s = player.connection.now_s() - work[0][0]
