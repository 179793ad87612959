"""Sessions in which two LLMs talk to each other: an agent and a simulated user (tau2-bench).

Rows are those of :mod:`sessions`, but calls belong to the threads ``agent`` and ``user_simulator`` of one list of
messages. One of them waits for the other, so that a session is one thread whose calls alternate between two agents;
each call continues its own agent's previous one. What one says is in the other's prompt as the same content.

Assumed, beyond what the source says:

* An agent sees what it said, what it was told, and the results of its own tools.
* An agent's first line, if nothing was asked for it and nothing counted, is no LLM call (a greeting from a file).
* What a first prompt counts beyond its messages is the agent's fixed prompt, as long as in the session of its model and
  domain so far in which it was shortest; the rest belongs to the task (the user's scenario, a ticket).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from kvflow.trace.importers.base import Importer, Json, clipped
from kvflow.trace.importers.conversation import Conversation, text_part, unseen_part
from kvflow.trace.importers.fixed import FixedPrompts
from kvflow.trace.importers.pauses import paced
from kvflow.trace.importers.sessionrow import Call, Session, framework
from kvflow.trace.importers.threads import Timed
from kvflow.trace.importers.toolruns import ToolRuns
from kvflow.trace.schema import MAIN_THREAD, Event, LLMCall, ThreadEvent, WorkflowEnd, WorkflowStart

AGENT, USER = "agent", "user_simulator"
_ROLES = {AGENT: ("assistant", "user"), USER: ("user", "assistant")}


class DialogueImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "dialogue"
    token_counts = "mixed"
    notes = "t is since the start of a session; counted prompts are shared out to their texts by length"

    def __init__(self, sample: Sequence[Json], path: Path) -> None:
        super().__init__(sample, path)
        self._fixed = FixedPrompts()

    @classmethod
    def fits(cls, row: Json) -> bool:
        """Messages, and LLM calls of the two."""
        calls = row.get("llm_calls")
        if not isinstance(calls, list) or "messages" not in row:
            return False
        return bool(calls) and all(isinstance(call, dict) and call.get("th") in tuple(_ROLES) for call in calls)

    def events(self, row: str) -> Sequence[Event]:
        """Events of one session."""
        session = Session.model_validate_json(row)
        session.check()
        workflow = self.names.unique(session.session_id)
        kind = framework(session.source.rpartition("/")[2] or session.agent, session.domain)
        times = [message.t for message in session.messages if message.t is not None]
        return [
            WorkflowStart(workflow=workflow, type=kind, group=session.group),
            *_Dialogue(workflow, session, self._fixed).events(),
            WorkflowEnd(workflow=workflow, t=max(0.0, *times) if times else None),
        ]


class _Side:
    """What one of the two has seen so far."""

    def __init__(self, workflow: str, name: str) -> None:
        self.conversation = Conversation(f"{workflow}/{name}")
        self.fixed_tokens: int | None = None
        self.seen = 0


class _Dialogue:
    """One session, as it is converted."""

    def __init__(self, workflow: str, session: Session, fixed: FixedPrompts) -> None:
        self._workflow = workflow
        self._session = session
        self._fixed = fixed
        self._sides = {name: _Side(workflow, name) for name in _ROLES}
        self._answer_tokens: dict[int, int] = {}

    def events(self) -> list[ThreadEvent]:
        """Convert it."""
        events: list[Timed] = []
        tool_runs = ToolRuns(self._workflow, self._session)
        calls = sorted(enumerate(self._session.llm_calls), key=lambda item: item[1].out)
        for number, call in calls:
            if call.th not in _ROLES:
                raise ValueError(f"llm_calls.{number}.th: {call.th!r} is neither {AGENT} nor {USER}")
            self._hear(call)
            conversation = self._sides[call.th].conversation
            if conversation.asked or conversation.new_tokens or call.in_tok:
                events.append(self._ask(f"c{number}", call))
            events += tool_runs.after(number, call.th, MAIN_THREAD)
        threads = paced({MAIN_THREAD: events}, 0.0, holders_known=True)
        return [timed.event for timed in threads[MAIN_THREAD]]

    def _hear(self, call: Call) -> None:
        """Bring one side to where this call finds it."""
        side = self._sides[call.th]
        own, other = _ROLES[call.th]
        for index in range(side.seen, call.out):
            message = self._session.messages[index]
            heard = message.role == other and not message.tool_calls
            if heard or message.role == own or (message.role == "tool" and message.requestor == own):
                tokens = self._answer_tokens.get(index) if heard else None
                side.conversation.add(text_part(index, message.text, tokens))
        side.seen = call.out
        if not side.conversation.asked:
            self._open(side, call)

    def _open(self, side: _Side, call: Call) -> None:
        seen = side.conversation.new_tokens
        model = self._session.user_model if call.th == USER else self._session.model
        key = (self._session.agent if call.th == AGENT else USER, model or "", self._session.domain or "")
        task_tokens = 0
        if call.in_tok and (call.th == USER or not seen):
            fixed_tokens = self._fixed.unseen_tokens(key, call.in_tok - seen)
            task_tokens = call.in_tok - seen - fixed_tokens
        if task_tokens > 0:
            side.conversation.put_first(unseen_part(f"task:{call.th}:{self._session.group or ''}", task_tokens))
        side.fixed_tokens = self._fixed.open(side.conversation, key, (), seen + max(0, task_tokens), call.in_tok)

    def _ask(self, name: str, call: Call) -> Timed:
        side = self._sides[call.th]
        prompt = side.conversation.ask(name, call.in_tok)
        side.seen = call.out + 1
        message = self._session.messages[call.out]
        tokens = self._session.answer_tokens(call, None, [])
        self._answer_tokens[call.out] = tokens
        event = LLMCall(
            workflow=self._workflow,
            t=clipped(call.t_start),
            agent=call.th,
            call=name,
            prompt=prompt,
            output=side.conversation.answer(text_part(call.out, message.text, tokens)),
            output_tokens=tokens,
            fixed_tokens=None if side.fixed_tokens is None else min(side.fixed_tokens, prompt.tokens),
            llm_s=call.took_s,
        )
        return Timed(call.t_start, event, call.ended_s)
