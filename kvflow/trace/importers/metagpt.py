"""Debug logs of MetaGPT, told line by line.

A row is one run: ``steps`` with ``fn`` (the function that logged), ``agent`` and ``t`` in seconds. An LLM call is two
lines, logged when it has ended: one with the token counts, one with the ``prompt`` as a list of messages.

Assumed:

* A call starts at the log line before its counts (role actions log that they begin), so that ``llm_s`` is at most the
  time in between.
* System messages are the fixed prompt of their role; runs share them, and user messages that are alike and are counted
  alike.
* The answer is the next line, if that comes from an action; otherwise only its length is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from kvflow.trace.importers.base import Clock, Importer, Json, Row, Text, Tokens, digest, estimated_tokens, since
from kvflow.trace.importers.contexts import Contexts
from kvflow.trace.importers.conversation import Conversation, text_part
from kvflow.trace.importers.fixed import FixedPrompts
from kvflow.trace.importers.sessionrow import framework
from kvflow.trace.schema import Event, LLMCall, WorkflowEnd, WorkflowStart


class _Message(Row):
    role: str = "user"
    content: Text = ""


class _Step(Row):
    agent: str | None = None
    fn: str = ""
    content: Text = ""
    t: Clock | None = None
    in_tok: Tokens | None = None
    out_tok: Tokens | None = None
    prompt: list[_Message] | str | None = None


class _Run(Row):
    session_id: str
    group: str | None = None
    framework: str = "MetaGPT"
    steps: Annotated[list[_Step], Field(min_length=1)]


class MetaGPTImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "metagpt"
    token_counts = "mixed"
    notes = "t is since the start of a run; llm_s is an upper bound"

    def __init__(self, sample: Sequence[Json], path: Path) -> None:
        super().__init__(sample, path)
        self._fixed = FixedPrompts()

    @classmethod
    def fits(cls, row: Json) -> bool:
        """Steps that are log lines of functions."""
        steps = row.get("steps")
        return isinstance(steps, list) and any(isinstance(step, dict) and "fn" in step for step in steps[:1])

    def events(self, row: str) -> Sequence[Event]:
        """Events of one run."""
        run = _Run.model_validate_json(row)
        workflow = self.names.unique(run.session_id)
        calls = self._calls(workflow, run)
        if not calls:
            raise ValueError("steps: the run has no LLM call")
        return [
            WorkflowStart(workflow=workflow, type=framework(run.framework, None), group=run.group),
            *calls,
            WorkflowEnd(workflow=workflow, t=run.steps[-1].t),
        ]

    def _calls(self, workflow: str, run: _Run) -> list[LLMCall]:
        calls: list[LLMCall] = []
        contexts = Contexts()
        counted, started_s, free_s = _Step(), None, 0.0
        for index, step in enumerate(run.steps):
            if step.in_tok is not None:
                counted, started_s = step, run.steps[index - 1].t if index else None
            if step.prompt is None:
                continue
            following = run.steps[index + 1] if index + 1 < len(run.steps) else _Step()
            answer = following.content if following.fn.startswith("actions.") else ""
            call = self._call(workflow, f"c{len(calls)}", step, counted, answer, contexts)
            ended_s = step.t if counted.t is None else counted.t
            if started_s is not None and ended_s is not None:
                times = {
                    "t": started_s,
                    "llm_s": since(started_s, ended_s),
                    "delay_s": since(free_s, started_s),
                }
                call, free_s = call.model_copy(update=times), ended_s
            calls.append(call)
            counted, started_s = _Step(), None
        return calls

    def _call(self, workflow: str, name: str, step: _Step, counted: _Step, answer: str, contexts: Contexts) -> LLMCall:
        agent = step.agent or "agent"
        messages = [_Message(content=step.prompt)] if isinstance(step.prompt, str) else step.prompt or []
        system = [message.content for message in messages if message.role == "system" and message.content]
        others = [message.content for message in messages if message.role != "system" and message.content]
        conversation = Conversation(f"{workflow}/{name}")
        for index, text in enumerate(others or [""]):
            conversation.add(text_part(index, text))
        fixed = [text_part(("system", index), text) for index, text in enumerate(system)]
        others_tokens = conversation.new_tokens
        fixed_tokens = self._fixed.open(conversation, (agent,), fixed, others_tokens, counted.in_tok, complete=True)
        pieces = conversation.ask(name, counted.in_tok).add
        tokens = counted.out_tok
        if tokens is None:
            tokens = estimated_tokens(answer) if answer else 0
        call = LLMCall(
            workflow=workflow,
            agent=agent,
            call=name,
            prompt=contexts.prompt(pieces),
            output=f"{digest(answer)}.{tokens}" if answer else f"{workflow}/{name}",
            output_tokens=tokens,
            fixed_tokens=fixed_tokens,
        )
        contexts.note(agent, name, pieces, None)
        return call
