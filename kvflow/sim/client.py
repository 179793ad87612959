"""The simulated clients: programs that run in a closed loop, so that a late answer delays what comes after it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import simpy
from simpy.events import ProcessGenerator

from kvflow.engine import PromptClaim
from kvflow.graph import END
from kvflow.hints import DecodedFact, Fact, StepFact, ToolFact
from kvflow.hints.models import STEP_TYPE, TOOL_TYPE
from kvflow.sim.context import Context, Pager
from kvflow.sim.ports import Brain, Thread
from kvflow.sim.request import Request
from kvflow.sim.server import Server
from kvflow.sim.tree import Node
from kvflow.trace import MAIN_THREAD, Join, LLMCall, Piece, Program, Spawn, ThreadEvent, ToolEnd, ToolStart

_NAME_CHARS = 128
_ID_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What stands in for times a trace does not have.

    Attributes:
        tool_s: median of a log-normal distribution for tools without a recorded duration.
        tool_spread: standard deviation of its logarithm; with 0 these tools all take as long.
        delay_s: what a client does between events when the trace does not say.
        max_delay_s: longest recorded delay or tool that is kept; people go home.
    """

    tool_s: float = 1.0
    tool_spread: float = 1.0
    delay_s: float = 0.0
    max_delay_s: float = 600.0


@dataclass(slots=True, eq=False)
class _Run:
    """One workflow under way.

    Attributes:
        contexts: prompt with answer of every call so far.
        tips: node where a call's context ended.
        threads: processes of spawned threads.
        over_s: when those were over that are.
        pending: what other threads wait for: calls that have not been answered.
    """

    program: Program
    workflow_id: str
    contexts: dict[str, Context] = field(default_factory=dict)
    tips: dict[str, Node | None] = field(default_factory=dict)
    threads: dict[str, simpy.Process] = field(default_factory=dict)
    spawned: dict[str, simpy.Event] = field(default_factory=dict)
    over_s: dict[str, float] = field(default_factory=dict)
    pending: dict[str, simpy.Event] = field(default_factory=dict)


class Clients:
    """Runs programs, so many at a time, against a server.

    Args:
        brain: told of everything a real client would say; oracles also of what it is about to do.
        seed: for durations that the trace does not have.
    """

    def __init__(
        self, env: simpy.Environment, server: Server, brain: Brain, pager: Pager, *, waits: Waits, seed: int
    ) -> None:
        self.completion_s: dict[str, float] = {}
        self.calls = 0
        self._env = env
        self._server = server
        self._brain = brain
        self._pager = pager
        self._waits = waits
        self._seed = seed

    def work(self, programs: Iterator[tuple[int, Program]]) -> ProcessGenerator:
        """Run one program after the other (SimPy process; one of these per program that runs at a time)."""
        for order, program in programs:
            run = _Run(program, f"{order}:{program.start.workflow}"[:_ID_CHARS])
            began_s = self._env.now
            self._brain.begin(program)
            yield from self._thread(run, MAIN_THREAD, run.workflow_id, program.start.type[:_NAME_CHARS])
            while alive := [thread for thread in run.threads.values() if thread.is_alive]:
                yield alive[0]
            self._say(StepFact(workflow_id=run.workflow_id, agent=END))
            self.completion_s[run.workflow_id] = self._env.now - began_s

    def _thread(self, run: _Run, name: str, workflow_id: str, workflow_type: str) -> ProcessGenerator:
        events = run.program.threads.get(name, [])
        thread = self._describe(run, name, workflow_id, workflow_type)
        parent_id = None if workflow_id == run.workflow_id else run.workflow_id
        step = _Step(workflow_id, workflow_type, parent_id, run.program.start.tenant)
        tools: dict[str, ToolStart] = {}
        waited_s: float | None = None  # when what its latest events waited for was over
        for position, event in enumerate(events):
            before_s, waited_s = waited_s, None
            thread.position = position
            self._brain.reach(thread)
            self._catch_up(step, thread, event)
            match event:
                case LLMCall():
                    yield from self._call(run, event, step, thread)
                    waited_s = self._env.now
                case ToolStart():
                    thread.tools_s[event.tool_call] = self._env.now + thread.tool_s(event)
                    tools[event.tool_call] = event
                    self._say(step.tool(event, "start"))
                case ToolEnd():
                    start = tools.pop(event.tool_call)
                    yield from self._tool_ends(start, thread, before_s)
                    step.ended.append(step.tool(start, "end"))
                case Spawn():
                    child_id = f"{run.workflow_id[: _ID_CHARS // 2]}/{event.child}"[:_ID_CHARS]
                    child_type = f"{workflow_type}/{_first_agent(run, event)}"[:_NAME_CHARS]
                    run.threads[event.child] = self._env.process(self._thread(run, event.child, child_id, child_type))
                    self._spawned(run, event.child).succeed()
                case Join():
                    yield self._spawned(run, event.child)  # by another thread, which may be late
                    yield run.threads[event.child]
                    waited_s = max(before_s or 0.0, run.over_s.get(event.child, 0.0))
        run.over_s[name] = self._env.now
        self._say(*step.riding())
        if parent_id is not None:
            self._say(StepFact(workflow_id=workflow_id, agent=END))

    def _spawned(self, run: _Run, child: str) -> simpy.Event:
        return run.spawned.setdefault(child, self._env.event())

    def _tool_ends(self, start: ToolStart, thread: Thread, waited_s: float | None) -> ProcessGenerator:
        """Wait for a tool; one that has waited itself, for calls or threads, goes on from then."""
        end_s = thread.tools_s.pop(start.tool_call)
        if waited_s is not None:
            end_s = max(end_s, waited_s + thread.tool_s(start))
        if end_s > self._env.now:
            yield self._env.timeout(end_s - self._env.now)

    def _describe(self, run: _Run, name: str, workflow_id: str, workflow_type: str) -> Thread:
        events = run.program.threads.get(name, [])
        recorded = {event.tool_call: event.seconds for event in events if isinstance(event, ToolEnd)}
        longest_s = self._waits.max_delay_s

        def tool_s(start: ToolStart) -> float:
            seconds = recorded.get(start.tool_call)
            if seconds is not None:
                return min(seconds, longest_s)
            own = random.Random(f"{self._seed}/{run.program.start.workflow}/{name}/{start.tool_call}")
            return min(self._waits.tool_s * own.lognormvariate(0.0, self._waits.tool_spread), longest_s)

        def delay_s(call: LLMCall) -> float:
            return self._waits.delay_s if call.delay_s is None else min(call.delay_s, longest_s)

        return Thread(
            workflow_id=workflow_id, workflow_type=workflow_type, events=events, tool_s=tool_s, delay_s=delay_s
        )

    def _call(self, run: _Run, call: LLMCall, step: _Step, thread: Thread) -> ProcessGenerator:
        delay_s = thread.delay_s(call)
        if delay_s:
            yield self._env.timeout(delay_s)
        base = call.prompt.base
        while base is not None and base not in run.contexts:  # of another thread, which is late
            self._say(*step.riding())
            yield run.pending.setdefault(base, self._env.event())
        before = run.contexts[base] if base is not None else self._pager.empty()
        prompt = self._pager.extend(before, call.prompt.keep_tokens, call.prompt.add)
        answer = [Piece(call.output, call.output_tokens)] if call.output_tokens else []
        whole = self._pager.extend(prompt, prompt.tokens, answer)
        claim = PromptClaim(
            workflow_id=step.workflow_id,
            workflow_type=step.workflow_type,
            agent=call.agent[:_NAME_CHARS],
            fixed_tokens=call.fixed_tokens,
            program_id=run.workflow_id,
            tenant=step.tenant or "",
        )
        self._say(*step.riding(), *step.enter(call.agent[:_NAME_CHARS]), with_request=True)
        self._brain.reach(thread, asking=True)
        request = Request(
            claim=claim,
            prompt=prompt,
            whole=whole,
            output_tokens=call.output_tokens,
            near=self._kept(run.tips.get(base or ""), call.prompt.keep_tokens),
            arrived_s=self._env.now,
            done=self._env.event(),
        )
        self._env.process(self._server.submit(request))
        answered: bool = yield request.done  # if it is not longer than the device
        self._brain.answered(claim)
        lost_some = bool(request.hits) and request.hits["device"] + self._pager.page_tokens < call.prompt.keep_tokens
        if lost_some and request.admitted_s is not None and request.first_token_s is not None:
            self._brain.waited(request.admitted_s - request.arrived_s, request.first_token_s - request.admitted_s)
        self.calls += answered
        run.contexts[call.call] = whole
        run.tips[call.call] = request.node
        if call.call in run.pending:
            run.pending.pop(call.call).succeed()

    def _kept(self, tip: Node | None, keep_tokens: int) -> Node | None:
        """The deepest node that the kept part of a context covers, from the node at which the context ended."""
        while tip is not None and tip.end * self._pager.page_tokens > keep_tokens:
            tip = tip.parent
        return tip

    def _catch_up(self, step: _Step, thread: Thread, event: ThreadEvent) -> None:
        """Say what has not been said yet, unless it can ride on a request that follows at once."""
        if not isinstance(event, LLMCall) or thread.delay_s(event):
            self._say(*step.riding())

    def _say(self, *facts: Fact, with_request: bool = False) -> None:
        items = [
            DecodedFact(action_id="", action_type=STEP_TYPE if isinstance(fact, StepFact) else TOOL_TYPE, fact=fact)
            for fact in facts
        ]
        if items:
            self._brain.take(items, with_request=with_request)


@dataclass(slots=True)
class _Step:
    """The step a thread is in, and the facts that tell of it, as kvflow's client would send them.

    Attributes:
        ended: facts of tools that have ended; they ride on the request that follows at once, if one does.
    """

    workflow_id: str
    workflow_type: str
    parent_id: str | None
    tenant: str | None
    agent: str | None = None
    count: int = 0
    ended: list[Fact] = field(default_factory=list)

    def riding(self) -> list[Fact]:
        """What has not been said yet, to be said now."""
        facts, self.ended = self.ended, []
        return facts

    def enter(self, agent: str) -> list[Fact]:
        """An agent asks; a step ends when another agent's begins."""
        facts: list[Fact] = []
        if agent != self.agent:
            if self.agent is not None:
                facts.append(self._fact(self.agent, "end"))
            self.agent = agent
            self.count += 1
        facts.append(self._fact(agent, "start"))
        return facts

    def tool(self, start: ToolStart, event: str) -> ToolFact:
        """An agent's tool starts or ends."""
        return ToolFact.model_construct(
            workflow_id=self.workflow_id,
            agent=self.agent or start.agent[:_NAME_CHARS],
            tool=start.tool[:_NAME_CHARS],
            verb=start.verb[:_NAME_CHARS] if start.verb else None,
            event=event,
            call_id=start.tool_call,
            expected_s=None,
        )

    def _fact(self, agent: str, event: str) -> StepFact:
        return StepFact.model_construct(
            workflow_id=self.workflow_id,
            agent=agent,
            workflow_type=self.workflow_type,
            step_id=f"{self.count}:{agent}",
            event=event,
            parent_workflow_id=self.parent_id,
            tools=[],
            final=False,
            tenant=self.tenant,
            fixed_prompt_tokens=None,
            fixed_prompt_messages=None,
        )


def _first_agent(run: _Run, spawn: Spawn) -> str:
    events = run.program.threads.get(spawn.child, [])
    return next((event.agent for event in events if isinstance(event, LLMCall)), spawn.child)
