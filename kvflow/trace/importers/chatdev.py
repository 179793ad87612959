"""Logs of ChatDev: a chain of phases, in each of which two roles talk.

A row is one run: ``steps`` with ``kind``, ``phase``, ``t`` in seconds. A phase begins with ``start_chat``, whose text
is the system prompt of the role that answers, in brackets, and the phase's instructions. Every ``llm_receive`` is an
LLM call; the ``message`` lines after them hold the answers, each behind the other role's system prompt in brackets.

Assumed:

* The first call of a phase is made by the role that sends its first message, the next one by the other role, in turn.
  A prompt is the role's system prompt, the instructions, and the dialogue of the phase so far.
* System prompts are cut at their lines, so that roles and runs share those that are alike. Those before the customer's
  task are the fixed prompt.
* A call takes from ``llm_send`` to ``llm_receive``, in whole seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from kvflow.trace.importers.base import Clock, Importer, Json, Row, Text, Tokens, digest, estimated_tokens, since
from kvflow.trace.importers.contexts import Contexts
from kvflow.trace.importers.conversation import Conversation, text_part
from kvflow.trace.importers.fixed import FixedPrompts
from kvflow.trace.importers.sessionrow import framework
from kvflow.trace.schema import Event, LLMCall, WorkflowEnd, WorkflowStart

_HEADED = re.compile(r"(?:\*\*[^\n]*\*\*\s*)?\[(?P<system>.*?)\]\s*\n\n(?P<rest>.*)", re.DOTALL)
_LOGGER = "HTTP Request"
"""Lines of an HTTP client's own log, which look like messages."""
_TASK_LINE = "Here is a new customer's task"


class _Step(Row):
    agent: str | None = None
    to: str | None = None
    kind: str = ""
    content: Text = ""
    t: Clock | None = None
    in_tok: Tokens | None = None
    out_tok: Tokens | None = None


class _Run(Row):
    session_id: str
    group: str | None = None
    framework: str = "ChatDev"
    steps: Annotated[list[_Step], Field(min_length=1)]


@dataclass(slots=True)
class _Phase:
    """What a phase logged.

    Attributes:
        calls: what was received, and when it was asked for.
    """

    opening: _Step
    calls: list[tuple[_Step, float | None]] = field(default_factory=list)
    messages: list[_Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One LLM call: who asks, with which texts, and what became of it."""

    agent: str
    system: str
    said: list[str]
    answer: str
    received: _Step
    sent_s: float | None


class ChatDevImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "chatdev"
    token_counts = "mixed"
    notes = "t is since the start of a run, in whole seconds; prompts are put together from what was logged"

    def __init__(self, sample: Sequence[Json], path: Path) -> None:
        super().__init__(sample, path)
        self._fixed = FixedPrompts()

    @classmethod
    def fits(cls, row: Json) -> bool:
        """Steps of kinds, in phases."""
        steps = row.get("steps")
        return isinstance(steps, list) and any(isinstance(step, dict) and "kind" in step for step in steps[:1])

    def events(self, row: str) -> Sequence[Event]:
        """Events of one run."""
        run = _Run.model_validate_json(row)
        workflow = self.names.unique(run.session_id)
        contexts = Contexts()
        calls: list[LLMCall] = []
        free_s = 0.0
        for turn in (turn for phase in _phases(run.steps) for turn in _turns(phase)):
            call = self._call(workflow, f"c{len(calls)}", turn, contexts)
            if turn.sent_s is not None and turn.received.t is not None:
                call = call.model_copy(update={"delay_s": since(free_s, turn.sent_s)})
                free_s = turn.received.t
            calls.append(call)
        if not calls:
            raise ValueError("steps: the run has no LLM call in a phase")
        return [
            WorkflowStart(workflow=workflow, type=framework(run.framework, None), group=run.group),
            *calls,
            WorkflowEnd(workflow=workflow, t=run.steps[-1].t),
        ]

    def _call(self, workflow: str, name: str, turn: _Turn, contexts: Contexts) -> LLMCall:
        received = turn.received
        conversation = Conversation(f"{workflow}/{name}")
        lines = turn.system.splitlines(keepends=True)
        shared = next((i for i, line in enumerate(lines) if line.startswith(_TASK_LINE)), len(lines))
        for index, text in enumerate([*lines[shared:], *turn.said]):
            conversation.add(text_part(index, text))
        fixed = [text_part(("system", index), line) for index, line in enumerate(lines[:shared])]
        fixed_tokens = self._fixed.open(
            conversation, ("ChatDev",), fixed, conversation.new_tokens, received.in_tok, complete=True
        )
        pieces = conversation.ask(name, received.in_tok).add
        tokens = received.out_tok
        if tokens is None:
            tokens = estimated_tokens(turn.answer) if turn.answer else 0
        call = LLMCall(
            workflow=workflow,
            t=turn.sent_s,
            agent=turn.agent,
            call=name,
            prompt=contexts.prompt(pieces),
            output=f"{digest(turn.answer)}.{tokens}" if turn.answer else f"{workflow}/{name}",
            output_tokens=tokens,
            fixed_tokens=fixed_tokens,
            llm_s=since(turn.sent_s, received.t),
        )
        contexts.note(turn.agent, name, pieces, None)
        return call


def _phases(steps: Sequence[_Step]) -> Iterator[_Phase]:
    phase: _Phase | None = None
    sent_s: float | None = None
    for step in steps:
        if step.kind == "start_chat":
            if phase:
                yield phase
            phase, sent_s = _Phase(step), None
        elif step.kind == "llm_send":
            sent_s = step.t
        elif phase and step.kind == "llm_receive":
            phase.calls.append((step, sent_s))
            sent_s = None
        elif phase and step.kind == "message" and step.agent != _LOGGER:
            phase.messages.append(step)
    if phase:
        yield phase


def _turns(phase: _Phase) -> Iterator[_Turn]:
    texts = [_HEADED.match(step.content) for step in (phase.opening, *phase.messages)]
    systems = [text["system"] if text else "" for text in texts]
    said = [
        text["rest"] if text else step.content
        for text, step in zip(texts, (phase.opening, *phase.messages), strict=True)
    ]
    roles = [phase.messages[0].agent if phase.messages else None, phase.opening.agent]
    for number, (received, sent_s) in enumerate(phase.calls):
        yield _Turn(
            agent=roles[number % 2] or "agent",
            system=systems[number] if number < len(systems) else "",
            said=said[: number + 1],
            answer=said[number + 1] if number + 1 < len(said) else "",
            received=received,
            sent_s=sent_s,
        )
