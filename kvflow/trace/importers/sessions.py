"""Sessions with full messages: coding agents (mini-swe-agent, Claude Code, OpenHands, SWE-agent) and tau-bench.

A row is one session. The prompt of an LLM call is every message of its thread before the answer, so that a thread is
one growing conversation (see :mod:`conversation` for how counted tokens are shared out).

Assumed, beyond what the source says:

* System messages and tool schemas at the start, and the part of the first prompt that is counted but not shown, are
  the fixed prompt (see :mod:`fixed`).
* Tools of one answer run as their times say; without times they all start together.
* A sub-agent is spawned by the tool call that its thread names, right after it starts, and joined right before it
  ends. If no such call is known, it is spawned at its first message and joined after its last.
* What went by between calls and tools is the delay of the next call, and what a tool's sub-agent took is no time of the
  tool (see :mod:`pauses`).
* A condensation rewrites the history: what stands before the first message that is gone is kept. The LLM call that
  wrote the summary is in no source, its time is part of the delay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from kvflow.trace.importers.base import Importer, Json, clipped
from kvflow.trace.importers.conversation import Conversation, Part, text_part
from kvflow.trace.importers.fixed import FixedPrompts
from kvflow.trace.importers.pauses import paced
from kvflow.trace.importers.sessionrow import Call, Session, framework
from kvflow.trace.importers.threads import Timed, interleave
from kvflow.trace.importers.toolruns import ToolRuns
from kvflow.trace.schema import (
    MAIN_THREAD,
    Event,
    Join,
    LLMCall,
    Spawn,
    Supersede,
    WorkflowEnd,
    WorkflowStart,
)


class SessionImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "sessions"
    token_counts = "mixed"
    notes = "t is since the start of a session; counted prompts are shared out to their texts by length"

    def __init__(self, sample: Sequence[Json], path: Path) -> None:
        super().__init__(sample, path)
        self._fixed = FixedPrompts()

    @classmethod
    def fits(cls, row: Json) -> bool:
        """Messages, and LLM calls that point at them."""
        return "messages" in row and "llm_calls" in row

    def events(self, row: str) -> Sequence[Event]:
        """Events of one session."""
        session = Session.model_validate_json(row)
        session.check()
        workflow = self.names.unique(session.session_id)
        tool_runs = ToolRuns(workflow, session)
        threads: dict[str, list[Timed]] = {MAIN_THREAD: []}
        for name in dict.fromkeys(call.th for call in session.llm_calls):
            threads[name] = _Thread(workflow, session, name, self._fixed, tool_runs).events()
        _attach(workflow, session, threads, tool_runs)
        _check_begun(threads)
        times = [message.t for message in session.messages if message.t is not None]
        return [
            WorkflowStart(workflow=workflow, type=framework(session.agent, session.domain), group=session.group),
            *interleave(paced(threads, 0.0, holders_known=True)),
            WorkflowEnd(workflow=workflow, t=max(0.0, *times) if times else None),
        ]


class _Thread:
    """One thread, as it is converted."""

    def __init__(self, workflow: str, session: Session, name: str, fixed: FixedPrompts, tool_runs: ToolRuns) -> None:
        self._workflow = workflow
        self._session = session
        self._name = name
        self._fixed = fixed
        self._tool_runs = tool_runs
        self._agent = session.agent_of(name)
        self._messages = [index for index, message in enumerate(session.messages) if message.th == name]
        self._calls = session.calls_of(name)
        self._answers = {call.out for _, call in self._calls}
        self._conversation = Conversation(f"{workflow}/{name}")
        self._condensed = 0
        self._last: tuple[str, int] = ("", -1)
        self._fixed_tokens: int | None = None

    def events(self) -> list[Timed]:
        """Convert it."""
        events: list[Timed] = []
        for (number, call), following in zip(self._calls, [*self._calls[1:], None], strict=True):
            events += self._history(call)
            if self._conversation.asked or self._conversation.new_tokens or call.in_tok:
                events.append(self._ask(f"c{number}", call, following[1] if following else None))
            else:  # nothing was asked and nothing counted: a text from a file, not an answer
                self._answers.discard(call.out)
            events += self._tool_runs.after(number, self._agent, self._name)
        return events

    def _history(self, call: Call) -> list[Timed]:
        """Bring the conversation to where this call finds it; tells what is superseded by that."""
        condensed = sum(each.at <= call.out for each in self._session.condensations)
        if condensed > self._condensed:
            self._condensed = condensed
            return self._condense(call)
        parts = [text_part(index, self._session.messages[index].text) for index in self._between(call.out)]
        if self._conversation.asked:
            for part in parts:
                self._conversation.add(part)
        else:
            self._open(parts, call)
        return []

    def _between(self, end: int) -> list[int]:
        """Messages after the last answer and before another one."""
        return [i for i in self._messages if self._last[1] < i < end and i not in self._answers]

    def _open(self, parts: list[Part], call: Call) -> None:
        system = 0
        while system < len(parts) and self._session.messages[self._messages[system]].role == "system":
            system += 1
        fixed = parts[:system]
        if self._session.tools and self._name == MAIN_THREAD:
            fixed.insert(0, text_part(None, json.dumps(self._session.tools, ensure_ascii=False)))
        for part in parts[system:]:
            self._conversation.add(part)
        key = (self._session.agent, self._session.model or "", "" if self._name == MAIN_THREAD else self._agent)
        others = self._conversation.new_tokens
        self._fixed_tokens = self._fixed.open(self._conversation, key, fixed, others, call.in_tok)

    def _condense(self, call: Call) -> list[Timed]:
        done = self._session.condensations[: self._condensed]
        gone = {index for each in done for index in each.forgotten}
        parts = [
            text_part(index, self._session.messages[index].text)
            for index in self._messages
            if index < call.out and index not in gone
        ]
        last = done[-1]
        if last.summary is not None and last.summary_offset is not None:
            parts.insert(min(last.summary_offset, len(parts)), text_part(("summary", self._condensed), last.summary))
        self._conversation.replace(parts)
        if not self._last[0]:
            return []
        superseded = Supersede(
            workflow=self._workflow,
            thread=self._name,
            t=clipped(call.t_start),
            call=self._last[0],
            keep_tokens=self._conversation.context_tokens,
        )
        return [Timed(call.t_start, superseded)]

    def _ask(self, name: str, call: Call, following: Call | None) -> Timed:
        prompt = self._conversation.ask(name, call.in_tok)
        self._last = (name, call.out)
        between = self._between(following.out) if following else []
        tokens = self._session.answer_tokens(call, following, [self._session.messages[i] for i in between])
        message = self._session.messages[call.out]
        started_s = call.t_start
        event = LLMCall(
            workflow=self._workflow,
            thread=self._name,
            t=clipped(started_s),
            agent=self._agent,
            call=name,
            prompt=prompt,
            output=self._conversation.answer(text_part(call.out, message.text, tokens)),
            output_tokens=tokens,
            fixed_tokens=None if self._fixed_tokens is None else min(self._fixed_tokens, prompt.tokens),
            llm_s=call.took_s,
        )
        return Timed(started_s, event, call.ended_s)


def _attach(workflow: str, session: Session, threads: dict[str, list[Timed]], tool_runs: ToolRuns) -> None:
    """Spawn and join the threads that no tool call spawns, by the times of their messages."""
    for name in [name for name in threads if name != MAIN_THREAD and name not in tool_runs.children]:
        log = session.threads.get(name)
        parent = log.parent if log and log.parent in threads and log.parent != name else MAIN_THREAD
        events = threads[parent]
        times = [message.t for message in session.messages if message.th == name and message.t is not None]
        first_s, last_s = (min(times), max(times)) if times else (0.0, float("inf"))
        start = next((i for i, timed in enumerate(events) if (timed.at_s or 0.0) >= first_s), len(events))
        events.insert(start, Timed(first_s, Spawn(workflow=workflow, thread=parent, child=name)))
        end = next((i for i, timed in enumerate(events) if i > start and (timed.at_s or 0.0) > last_s), len(events))
        events.insert(end, Timed(last_s if times else None, Join(workflow=workflow, thread=parent, child=name)))


def _check_begun(threads: Mapping[str, Sequence[Timed]]) -> None:
    """See to it that every thread is spawned by one that is.

    Raises:
        ValueError: some are not, as those whose parents form a cycle.
    """
    begun = [MAIN_THREAD]
    for name in begun:
        spawned = [timed.event.child for timed in threads.get(name, ()) if isinstance(timed.event, Spawn)]
        begun += [child for child in spawned if child not in begun]
    if lost := sorted(threads.keys() - set(begun)):
        raise ValueError(f"threads: nothing that leads back to {MAIN_THREAD!r} begins {', '.join(map(repr, lost))}")
