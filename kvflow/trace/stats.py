"""What is in a trace, counted in one pass."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kvflow.trace.ideal import IdealCache
from kvflow.trace.schema import Event, LLMCall, Spawn, ToolEnd, ToolStart, WorkflowEnd, WorkflowStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How values are spread; 0 everywhere if there are none."""

    count: int
    p50: float
    p90: float
    max: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Calls of one tool, or of one verb of it.

    Attributes:
        calls: all of them.
        seconds: of those whose time was recorded.
    """

    tool: str
    verb: str | None
    calls: int
    errors: int
    seconds: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStats:
    """Counts of a trace.

    Attributes:
        types: workflows by type, the most frequent first.
        threads: those besides the main ones.
        new_tokens: of a prompt, beyond what it keeps of an earlier call of its workflow.
        kept_share: tokens that prompts keep of earlier calls of their workflow, of all prompt tokens.
        ideal_hit_share: prompt tokens that a prefix cache which never forgets would have, of all prompt tokens.
        whole_context_share: calls whose prompt keeps all of an earlier call's prompt and answer, of the calls that are
            not the first of their workflow.
        tools: by tool and verb, those with the longest total time first.
    """

    workflows: int
    types: dict[str, int]
    calls: int
    threads: int
    calls_per_workflow: Spread
    prompt_tokens: Spread
    new_tokens: Spread
    output_tokens: Spread
    kept_share: float
    ideal_hit_share: float
    whole_context_share: float
    tools: tuple[ToolUse, ...]


def trace_stats(events: Iterable[Event]) -> TraceStats:
    """Count a trace.

    Cost: memory for one number per call and tool call, and for the contexts that an ideal cache would hold.
    """
    counts = _Counts()
    for event in events:
        counts.take(event)
    return counts.result()


class _Tool:
    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.seconds = array("d")


class _Counts:
    def __init__(self) -> None:
        self._types: Counter[str] = Counter()
        self._contexts: dict[str, dict[str, int]] = {}
        self._calls_per_workflow = array("q")
        self._prompt_tokens = array("q")
        self._new_tokens = array("q")
        self._output_tokens = array("q")
        self._threads = 0
        self._hit_tokens = 0
        self._later = 0
        self._whole = 0
        self._ideal = IdealCache()
        self._running: dict[tuple[str, str, str], tuple[str, str | None]] = {}
        self._tools: dict[tuple[str, str | None], _Tool] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, LLMCall):
            self._call(event)
        elif isinstance(event, ToolStart):
            self._running[event.workflow, event.thread, event.tool_call] = (event.tool, event.verb)
            self._tools.setdefault((event.tool, event.verb), _Tool()).calls += 1
        elif isinstance(event, ToolEnd):
            self._tool_end(event)
        elif isinstance(event, WorkflowStart):
            self._types[event.type] += 1
            self._contexts[event.workflow] = {}
        elif isinstance(event, Spawn):
            self._threads += 1
        elif isinstance(event, WorkflowEnd):
            self._end(event.workflow)

    def result(self) -> TraceStats:
        for workflow in list(self._contexts):
            self._end(workflow)
        prompts = _spread(self._prompt_tokens)
        tools = [
            ToolUse(tool=name, verb=verb, calls=tool.calls, errors=tool.errors, seconds=_spread(tool.seconds))
            for (name, verb), tool in self._tools.items()
        ]
        tools.sort(key=lambda tool: (-tool.seconds.total, -tool.calls, tool.tool, tool.verb or ""))
        return TraceStats(
            workflows=self._types.total(),
            types=dict(self._types.most_common()),
            calls=prompts.count,
            threads=self._threads,
            calls_per_workflow=_spread(self._calls_per_workflow),
            prompt_tokens=prompts,
            new_tokens=_spread(self._new_tokens),
            output_tokens=_spread(self._output_tokens),
            kept_share=_share(prompts.total - sum(self._new_tokens), prompts.total),
            ideal_hit_share=_share(self._hit_tokens, prompts.total),
            whole_context_share=_share(self._whole, self._later),
            tools=tuple(tools),
        )

    def _call(self, call: LLMCall) -> None:
        contexts = self._contexts.setdefault(call.workflow, {})
        tokens = call.prompt.tokens
        self._prompt_tokens.append(tokens)
        self._new_tokens.append(tokens - call.prompt.keep_tokens)
        self._output_tokens.append(call.output_tokens)
        self._hit_tokens += self._ideal.hit_tokens(call)
        if contexts:
            self._later += 1
            base = call.prompt.base
            self._whole += base is not None and contexts.get(base) == call.prompt.keep_tokens
        contexts[call.call] = tokens + call.output_tokens

    def _tool_end(self, end: ToolEnd) -> None:
        used = self._running.pop((end.workflow, end.thread, end.tool_call), None)
        if used is not None:
            tool = self._tools[used]
            tool.errors += end.error
            if end.seconds is not None:
                tool.seconds.append(end.seconds)

    def _end(self, workflow: str) -> None:
        contexts = self._contexts.pop(workflow, None)
        if contexts is not None:
            self._calls_per_workflow.append(len(contexts))
        self._ideal.end(workflow)


def _spread(values: array[int] | array[float]) -> Spread:
    if not values:
        return Spread(count=0, p50=0, p90=0, max=0, total=0)
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(
        count=len(ordered),
        p50=ordered[round(0.5 * last)],
        p90=ordered[round(0.9 * last)],
        max=ordered[-1],
        total=sum(ordered),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
