"""Synthetic traces: programs of a known shape, for questions that recorded ones do not answer.

    chain        agents one after another, each reading what those before it wrote (``relay``: the one before it);
                 ``turns`` passes
    fan          a planner, workers side by side, and a merger that reads them all; ``turns`` rounds
    loop         a writer and its critics, over and over; ``turns`` rounds on average
    react        one agent that calls tools, some of them in parallel; ``turns`` answers with tools on average
    supervisor   a supervisor that hands ``turns`` jobs to workers of its choice and reads their results

Every agent has a fixed prompt that all workflows of the trace share; traces of different seeds share nothing. The same
options give the same trace, event by event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from kvflow.errors import TraceError
from kvflow.trace.importers.contexts import Contexts
from kvflow.trace.schema import (
    MAIN_THREAD,
    Event,
    Join,
    LLMCall,
    Piece,
    Prompt,
    Spawn,
    ToolEnd,
    ToolStart,
    TraceHeader,
    WorkflowEnd,
    WorkflowStart,
)

TOOLS = (("search", 1.2), ("read", 0.05), ("run_tests", 12.0), ("edit", 0.02))
"""Tools of the react program and the medians of their durations in seconds; all spread alike."""
TOOL_SPREAD = 0.8
"""Standard deviation of the logarithm of a duration."""
PARALLEL_SHARE = 0.2
"""Answers of the react program that call two tools at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthOptions:
    """What a synthetic trace is made of.

    Attributes:
        workflows: how many.
        agents: in a workflow; of a fan those that work side by side, of a supervisor its workers, of a loop the critics
            and the writer.
        turns: see the module; at least 1.
        fixed_tokens: of every agent's fixed prompt.
        task_tokens: of what a workflow is about, on average.
        output_tokens: of an answer, on average; tool results are as long.
        apart_s: mean time between the starts of two workflows, which come as they like (Poisson).
        seed: of everything that is left to chance.
        relay: an agent of a chain reads only the answer before it, so that prompts do not grow.

    Raises:
        TraceError: a number is too small.
    """

    workflows: int = 20
    agents: int = 4
    turns: int = 3
    fixed_tokens: int = 1024
    task_tokens: int = 512
    output_tokens: int = 128
    apart_s: float = 1.0
    seed: int = 0
    relay: bool = False

    def __post_init__(self) -> None:
        for name in ("workflows", "agents", "turns", "fixed_tokens", "task_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise TraceError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.apart_s < math.inf:
            raise TraceError(f"apart_s must be at least 0 and finite, not {self.apart_s}")


def synthetic_trace(kind: str, options: SynthOptions) -> tuple[TraceHeader, Iterator[Event]]:
    """Make up a trace.

    Args:
        kind: one of ``KINDS``.
        options: how much of everything.

    Raises:
        TraceError: there is no such kind, or an option is not for it.
    """
    program = KINDS.get(kind)
    if program is None:
        raise TraceError(f"there is no synthetic program {kind!r}; there are: {', '.join(KINDS)}")
    if options.relay and kind != "chain":
        raise TraceError(f"relay is an option of chain, not of {kind}")
    notes = f"made up; seed {options.seed}"
    return TraceHeader(source=f"synthetic {kind}", notes=notes), _events(kind, program, options)


def _events(kind: str, program: _Program, options: SynthOptions) -> Iterator[Event]:
    chance = Random(options.seed)
    now_s = 0.0
    for number in range(options.workflows):
        run = _Run(kind, f"{kind}-{options.seed}-{number}", options, chance)
        yield WorkflowStart(workflow=run.workflow, t=round(now_s, 3), type=kind)
        yield from program(run)
        yield WorkflowEnd(workflow=run.workflow)
        now_s += chance.expovariate(1 / options.apart_s) if options.apart_s else 0.0


class _Run:
    """One workflow, as it is made up."""

    def __init__(self, kind: str, workflow: str, options: SynthOptions, chance: Random) -> None:
        self.workflow = workflow
        self.options = options
        self.chance = chance
        self.task = Piece(f"{workflow}/task", self.about(options.task_tokens))
        self._kind = kind
        self._contexts = Contexts()
        self._asked = 0
        self._called = 0

    def about(self, tokens: int) -> int:
        """Somewhat more or less of it, at least 1."""
        return max(1, round(self.chance.lognormvariate(math.log(tokens), 0.3)))

    def rounds(self) -> int:
        """As many as the options say on average, at least 1, with a long tail."""
        stop = 1 / self.options.turns
        count = 1
        while self.chance.random() > stop:
            count += 1
        return count

    def ask(self, agent: str, said: Sequence[Piece], thread: str = MAIN_THREAD) -> tuple[LLMCall, Piece]:
        """Let an agent answer; returns its call, and the answer as others read it."""
        self._asked += 1
        call = f"c{self._asked}"
        fixed = Piece(f"synthetic/{self._kind}-{self.options.seed}/{agent}", self.options.fixed_tokens)
        answer = Piece(f"{self.workflow}/{call}", self.about(self.options.output_tokens))
        pieces = [fixed, *said]
        # A spawned thread's context ends with it; what it shares with others they find by its contents.
        alone = thread != MAIN_THREAD
        event = LLMCall(
            workflow=self.workflow,
            thread=thread,
            agent=agent,
            call=call,
            prompt=Prompt(add=tuple(pieces)) if alone else self._contexts.prompt(pieces),
            output=answer.content,
            output_tokens=answer.tokens,
            fixed_tokens=fixed.tokens,
            delay_s=0.0,
        )
        if not alone:
            self._contexts.note(agent, call, pieces, answer)
        return event, answer

    def tools(self, agent: str, count: int) -> tuple[list[Event], list[Piece]]:
        """Let an agent call tools side by side; returns their events, and the results."""
        starts: list[Event] = []
        ends: list[tuple[float, ToolEnd]] = []
        results = []
        for _ in range(count):
            self._called += 1
            name = f"t{self._called}"
            tool, median_s = self.chance.choice(TOOLS)
            seconds = round(self.chance.lognormvariate(math.log(median_s), TOOL_SPREAD), 4)
            starts.append(ToolStart(workflow=self.workflow, agent=agent, tool_call=name, tool=tool))
            ends.append((seconds, ToolEnd(workflow=self.workflow, tool_call=name, seconds=seconds)))
            results.append(Piece(f"{self.workflow}/{name}", self.about(self.options.output_tokens)))
        return [*starts, *(end for _, end in sorted(ends, key=lambda item: item[0]))], results


_Program = Callable[[_Run], Iterator[Event]]


def _chain(run: _Run) -> Iterator[Event]:
    said = [run.task]
    for _ in range(run.options.turns):
        for number in range(run.options.agents):
            call, answer = run.ask(f"agent-{number}", said)
            said = [answer] if run.options.relay else [*said, answer]
            yield call


def _fan(run: _Run) -> Iterator[Event]:
    said = [run.task]
    for turn in range(run.options.turns):
        plan, planned = run.ask("planner", said)
        yield plan
        children = [f"worker-{number}/{turn}" for number in range(run.options.agents)]
        yield from (Spawn(workflow=run.workflow, child=child) for child in children)
        answers = []
        for child in children:
            work, answer = run.ask(child.partition("/")[0], [run.task, planned], child)
            answers.append(answer)
            yield work
        yield from (Join(workflow=run.workflow, child=child) for child in children)
        merge, merged = run.ask("merger", [run.task, planned, *answers])
        yield merge
        said += [planned, merged]


def _loop(run: _Run) -> Iterator[Event]:
    said = [run.task]
    for _ in range(run.rounds()):
        write, draft = run.ask("writer", said)
        yield write
        said.append(draft)
        for number in range(run.options.agents - 1):
            judge, verdict = run.ask(f"critic-{number}", [run.task, draft])
            yield judge
            said.append(verdict)


def _react(run: _Run) -> Iterator[Event]:
    said = [run.task]
    for _ in range(run.rounds()):
        call, answer = run.ask("react", said)
        yield call
        events, results = run.tools("react", 2 if run.chance.random() < PARALLEL_SHARE else 1)
        yield from events
        said += [answer, *results]
    yield run.ask("react", said)[0]


def _supervisor(run: _Run) -> Iterator[Event]:
    said = [run.task]
    for _ in range(run.options.turns):
        decide, job = run.ask("supervisor", said)
        yield decide
        worker = f"worker-{run.chance.randrange(run.options.agents)}"
        work, result = run.ask(worker, [run.task, job])
        yield work
        said += [job, result]
    yield run.ask("supervisor", said)[0]


KINDS: dict[str, _Program] = {
    "chain": _chain,
    "fan": _fan,
    "loop": _loop,
    "react": _react,
    "supervisor": _supervisor,
}
"""Programs by name."""
