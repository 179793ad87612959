"""Conversations of several agents, told as who said what (Who&When, HyperAgent's console logs).

A row is one session: ``steps`` in order, each with ``agent``, ``content`` and perhaps ``to``. Nothing was counted or
timed, and no prompt was logged.

Assumed:

* The first step is the request. What one agent says in consecutive steps is one LLM call. A prompt is the agent's
  system prompt and everything said in the chat so far. If the row has no system prompt of it, "You are" and its name
  stand for one, so that agents do not share what they cannot share.
* Humans, ``Admin``, terminals and interpreters are no LLMs, nor are agents without a system prompt if others have one.
  What a terminal or interpreter says is the result of a tool of that name, called by who spoke before it.
* ``to`` names a nested chat if no agent has that name. Its members see what is said in it. A step of somebody who also
  speaks elsewhere opens it afresh and is no LLM call, but the text it starts with; when that agent next speaks
  elsewhere, it sums up the nested chat, so that its prompt is what was said there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, ClassVar

from pydantic import Field

from kvflow.trace.importers.base import Clock, Importer, Json, NoNullMapping, Row, Text
from kvflow.trace.importers.contexts import Contexts, text_piece
from kvflow.trace.importers.sessionrow import framework
from kvflow.trace.schema import Event, LLMCall, Piece, ThreadEvent, ToolEnd, ToolStart, WorkflowEnd, WorkflowStart

_TOOLS = re.compile(r"terminal|interpreter", re.IGNORECASE)
_HUMANS = re.compile(r"^(human|admin|user)$", re.IGNORECASE)


class _Step(Row):
    agent: str
    to: str | None = None
    content: Text
    t: Clock | None = None


class _Session(Row):
    session_id: str
    group: str | None = None
    framework: str = "group-chat"
    agents: list[str] = Field(default_factory=list)
    system_prompts: Annotated[dict[str, Text], NoNullMapping] = Field(default_factory=dict)
    steps: Annotated[list[_Step], Field(min_length=1)]


class GroupChatImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "group-chat"
    notes = "prompts are put together from what the agents have seen; nothing was counted or timed"

    @classmethod
    def fits(cls, row: Json) -> bool:
        """Steps that are things said, and nothing else."""
        steps = row.get("steps")
        if not isinstance(steps, list) or not steps or not isinstance(steps[0], dict):
            return False
        return {"agent", "content"} <= steps[0].keys() and not {"kind", "fn"} & steps[0].keys()

    def events(self, row: str) -> Sequence[Event]:
        """Events of one session."""
        session = _Session.model_validate_json(row)
        workflow = self.names.unique(session.session_id)
        said = list(_Chat(workflow, session).events())
        if not any(isinstance(event, LLMCall) for event in said):
            raise ValueError("steps: nobody but humans and tools says anything")
        kind = framework(session.framework, None)
        return [
            WorkflowStart(workflow=workflow, type=kind, group=session.group),
            *said,
            WorkflowEnd(workflow=workflow, t=session.steps[-1].t),
        ]


class _Chat:
    """One session, as it is converted."""

    def __init__(self, workflow: str, session: _Session) -> None:
        self._workflow = workflow
        self._session = session
        self._contexts = Contexts()
        self._said: dict[str, list[Piece]] = {}
        self._opened: dict[str, str] = {}
        self._events = 0
        self._last_caller: str | None = None
        self._chats: dict[str, set[str]] = {}
        for step in session.steps:
            self._chats.setdefault(step.agent, set()).add(self._chat(step))

    def events(self) -> Iterator[ThreadEvent]:
        """Convert it."""
        first, *steps = self._session.steps
        self._hear(self._chat(first), first.content)
        for (agent, chat), run in groupby(steps, key=lambda step: (step.agent, self._chat(step))):
            turn = list(run)
            text = "\n".join(step.content for step in turn)
            self._events += 1
            if _TOOLS.search(agent):
                yield from self._tool(agent)
            elif self._opens(agent, chat):
                self._said[chat] = []
                self._opened[agent] = chat
            elif self._asks(agent):
                yield self._call(agent, chat, text, turn[0].t)
            self._hear(chat, text)

    def _chat(self, step: _Step) -> str:
        return step.to if step.to and step.to not in self._session.agents else ""

    def _opens(self, agent: str, chat: str) -> bool:
        return bool(chat) and len(self._chats[agent]) > 1 and chat != self._chat(self._session.steps[0])

    def _asks(self, agent: str) -> bool:
        if _HUMANS.match(agent):
            return False
        return not self._session.system_prompts or agent in self._session.system_prompts

    def _hear(self, chat: str, text: str) -> None:
        self._said.setdefault(chat, []).append(text_piece(text))

    def _tool(self, name: str) -> Iterator[ThreadEvent]:
        if self._last_caller is None:
            return
        tool_call = f"t{self._events}"
        yield ToolStart(workflow=self._workflow, agent=self._last_caller, tool_call=tool_call, tool=name)
        yield ToolEnd(workflow=self._workflow, tool_call=tool_call)

    def _call(self, agent: str, chat: str, text: str, t: float | None) -> LLMCall:
        system = self._session.system_prompts.get(agent)
        opening = text_piece(system or f"You are {agent}")
        heard = self._said.get(self._opened.pop(agent, chat), []) or [text_piece(self._session.steps[0].content)]
        pieces = [opening, *heard]
        answer = text_piece(text)
        name = f"c{self._events}"
        call = LLMCall(
            workflow=self._workflow,
            t=t,
            agent=agent,
            call=name,
            prompt=self._contexts.prompt(pieces),
            output=answer.content,
            output_tokens=answer.tokens,
            fixed_tokens=opening.tokens if system else None,
        )
        self._contexts.note(agent, name, pieces, answer)
        self._last_caller = agent
        return call
