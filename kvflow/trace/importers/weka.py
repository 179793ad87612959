"""Traces of Claude Code whose prompts are told as hashes of 64-token blocks (kv-cache-tester).

A row is one session. ``hash_ids`` has the blocks of a request, as the source publishes them (a file per session, of one
line); ``h`` codes the same: how many are kept of the request before it in the same list, then pairs of first block and
count. Blocks are numbered by their whole prefix, so that equal numbers mean equal prompts up to there; numbers mean
nothing outside their row.

Assumed, beyond what the source says:

* A request continues the call with which it shares most blocks, out of the last sixteen of its thread. If it shares
  all of them and is long enough, it also holds the rest of that prompt and its answer. What the blocks leave open at
  the end of a prompt is taken for new.
* ``think_time`` counts from the end of the last request that has an ``api_time``. Behind one that has none it is the
  time since that was sent.
* ``think_time`` is a tool named ``client`` if the call before it stopped for a tool and the request brings the result
  (the tool and any wait for permission; the source has no tool names), else it is the client's delay.
* ``t`` of a sub-agent is when it was over, and the times in it are since it began, ``duration_ms`` before. Of one that
  was launched and not waited for it is when it began; that has no duration.
* A sub-agent is joined before the first request that starts after its end.
  ``think_time`` counts from its last answer then, as the part before that is its own.
* No two sessions share contents: numbers mean nothing outside their row, so that fixed prompts, whose lengths
  (``tool_tokens``, ``system_tokens``) the source has, are not known to be alike.
* Requests with an empty prompt are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from kvflow.trace.importers.base import Importer, Json, Names, clipped, since
from kvflow.trace.importers.runs import Runs
from kvflow.trace.importers.threads import Timed, interleave
from kvflow.trace.importers.wekarow import Agent, Request, Session, as_begun, begun_s
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
    WorkflowEnd,
    WorkflowStart,
)

BASES = 16
"""Calls that are considered as the one a request continues."""
CLOCK_STEP_S = 1.0
"""Start times are logged in whole seconds."""
AGENT = "claude-code"


class WekaImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "weka"
    token_counts = "counted"
    notes = "t is since the start of a session; sessions share no contents, so that fixed prompts are not known"

    @classmethod
    def fits(cls, row: Json) -> bool:
        """A list of requests with blocks."""
        requests = row.get("requests")
        return isinstance(requests, list) and any(
            isinstance(each, dict) and ("h" in each or "hash_ids" in each) for each in requests
        )

    def events(self, row: str) -> Sequence[Event]:
        """Events of one session."""
        log = Session.model_validate_json(row)
        session = _Threads(workflow=self.names.unique(log.id), block_tokens=log.block_size)
        end_s = session.add(MAIN_THREAD, AGENT, log, start_s=0.0)
        return [
            WorkflowStart(workflow=session.workflow, type=AGENT, group=log.group),
            *interleave(session.events),
            WorkflowEnd(workflow=session.workflow, t=end_s),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    call: str
    tokens: int
    output_tokens: int
    runs: Runs


class _Threads:
    """The threads of one session, as they are converted."""

    def __init__(self, *, workflow: str, block_tokens: int) -> None:
        self.workflow = workflow
        self.block_tokens = block_tokens
        self.events: dict[str, list[Timed]] = {}
        self._names = Names()
        self._calls = 0
        self._worked_s: dict[str, tuple[float, float]] = {}

    def add(self, name: str, agent: str, log: Agent, *, start_s: float) -> float:
        """Convert a thread and those it spawns; returns its end in seconds."""
        thread = _Thread(self, name, agent, log, start_s)
        events = self.events[name] = thread.events
        running: dict[str, float] = {}
        end_s = start_s + max(0.0, log.duration_ms or 0.0) / 1000
        for entry in as_begun(log.requests):
            at_s = round(start_s + max(0.0, begun_s(entry)), 6)
            if isinstance(entry, Agent):
                child = self._names.unique(f"side:{entry.subagent_type or 'agent'}")
                events.append(Timed(at_s, Spawn(workflow=self.workflow, thread=name, t=at_s, child=child)))
                running[child] = self.add(child, entry.subagent_type or "sub-agent", entry, start_s=at_s)
                continue
            for child in [child for child, ends_s in running.items() if ends_s < at_s + CLOCK_STEP_S]:
                del running[child]
                events.append(Timed(at_s, Join(workflow=self.workflow, thread=name, t=at_s, child=child)))
                thread.joined(*self._worked_s[child])
            self._calls += 1
            thread.ask(f"c{self._calls}", entry, at_s)
            end_s = max(end_s, round(at_s + max(0.0, entry.api_time or 0.0), 6))
        for child, ends_s in running.items():
            end_s = max(end_s, ends_s)
            events.append(Timed(end_s, Join(workflow=self.workflow, thread=name, t=end_s, child=child)))
            thread.joined(*self._worked_s[child])
        self._worked_s[name] = start_s, thread.over_s
        return end_s


class _Thread:
    """One list of requests, as it is converted.

    Attributes:
        over_s: when its latest answer was there, and the threads it has joined were over.
    """

    def __init__(self, session: _Threads, name: str, agent: str, log: Agent, start_s: float) -> None:
        self.events: list[Timed] = []
        self.over_s = start_s
        self._session = session
        self._name = name
        self._agent = agent
        requests = [entry for entry in log.requests if isinstance(entry, Request)]
        self._tool_follows = {
            id(before): before.stop == "tool_use" and "tool_result" in after.input_types
            for before, after in pairwise(requests)
        }
        self._tool_call = ""
        self._answered_s = start_s
        self._waited_s = 0.0
        self._previous: Request | None = None
        self._blocks = Runs()
        self._asked: deque[_Asked] = deque(maxlen=BASES)

    def joined(self, start_s: float, over_s: float) -> None:
        """A thread that it spawned is over."""
        self.over_s = max(self.over_s, over_s)
        self._waited_s = max(self._waited_s, over_s - max(start_s, self._answered_s))

    def ask(self, call: str, request: Request, at_s: float) -> None:
        """Add a request, with the tool that ends before it and the one that starts after it."""
        wait_s = self._wait_s(request)
        if wait_s is not None:
            wait_s = clipped(wait_s - self._waited_s)
        workflow, thread = self._session.workflow, self._name
        if self._tool_call:
            self._add(
                at_s, ToolEnd(workflow=workflow, thread=thread, t=at_s, tool_call=self._tool_call, seconds=wait_s)
            )
            wait_s = 0.0
        runs = self._runs(request)
        if request.tokens:
            prompt = self._prompt(call, request, runs)
            asked = _Asked(call=call, tokens=request.tokens, output_tokens=request.out, runs=runs)
            self._asked.append(asked)
            self._add(
                at_s,
                LLMCall(
                    workflow=workflow,
                    thread=thread,
                    t=at_s,
                    agent=self._agent,
                    call=call,
                    prompt=prompt,
                    output=f"{self._session.workflow}/{call}",
                    output_tokens=request.out,
                    delay_s=wait_s,
                    llm_s=clipped(request.api_time),
                ),
            )
        self._waited_s = 0.0
        self._answered_s = self.over_s = round(at_s + max(0.0, request.api_time or 0.0), 6)
        self._tool_call = ""
        if self._tool_follows.get(id(request)):
            self._tool_call = f"after {call}"
            end_s = self._answered_s
            tool = ToolStart(
                workflow=workflow, thread=thread, t=end_s, agent=self._agent, tool_call=self._tool_call, tool="client"
            )
            self._add(end_s, tool)
        self._previous, self._blocks = request, runs

    def _add(self, at_s: float, event: LLMCall | ToolStart | ToolEnd) -> None:
        self.events.append(Timed(at_s, event))

    def _wait_s(self, request: Request) -> float | None:
        """Silence before a request. What the source counts begins where the last timed request was over."""
        previous = self._previous
        if request.think_time is not None and (previous is None or previous.api_time is not None):
            return clipped(request.think_time)
        return None if previous is None else since(previous.t + (previous.api_time or 0.0), request.t)

    def _runs(self, request: Request) -> Runs:
        if request.h is not None:
            runs = self._decoded(request.h, request.t)
        elif request.hash_ids is not None:
            runs = Runs.of(request.hash_ids)
        else:
            raise ValueError(f"request at {request.t:g} s has neither hash_ids nor h")
        block_tokens = self._session.block_tokens
        if (runs.blocks - 1) * block_tokens >= request.tokens:
            raise ValueError(f"request at {request.t:g} s has {runs.blocks} blocks, but {request.tokens} tokens")
        return runs

    def _decoded(self, coded: Sequence[int], t: float) -> Runs:
        kept = coded[0]
        if kept > self._blocks.blocks:
            raise ValueError(f"request at {t:g} s keeps {kept} of {self._blocks.blocks} blocks")
        runs = self._blocks.head(kept)
        for first, count in zip(coded[1::2], coded[2::2], strict=True):
            runs.append(first, count)
        return runs

    def _prompt(self, call: str, request: Request, runs: Runs) -> Prompt:
        base, kept = self._base(request, runs)
        content, block_tokens = self._session.workflow, self._session.block_tokens
        pieces = list(runs.pieces(content, block_tokens, kept, request.tokens))
        left = request.tokens - kept - sum(piece.tokens for piece in pieces)
        if left:
            pieces.append(Piece(f"{content}/{call}/end", left))
        return Prompt(base=base.call if base else None, keep_tokens=kept, add=tuple(pieces))

    def _base(self, request: Request, runs: Runs) -> tuple[_Asked | None, int]:
        base, common = None, 0
        for asked in reversed(self._asked):
            blocks = asked.runs.common(runs)
            if blocks > common:
                base, common = asked, blocks
            if common in (runs.blocks, asked.runs.blocks):
                break
        if base is None:
            return None, 0
        if common == base.runs.blocks:
            for kept in (base.tokens + base.output_tokens, base.tokens):
                if kept <= request.tokens:
                    return base, kept
        return base, min(common * self._session.block_tokens, request.tokens)
