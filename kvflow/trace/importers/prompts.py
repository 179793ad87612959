"""LLM calls with the text of their prompts (collections of LMCache and HyperAgent).

A row is one session: ``calls`` in time order, each with the characters it keeps of the prompt before it (``shared``),
what follows them (``suffix``), and the ``output``. A session is one thread, even if several agents take turns in it.

Assumed, beyond what the source says:

* A call continues the one with which its prompt shares most characters, out of the latest call of each agent. If all of
  that prompt is there and its output comes next, both are kept. Of a token that is shared in part, nothing is.
* New text is cut into slices of 280 characters, 80 tokens each, so that prompts that begin alike share contents.
* Which agent asks shows in the first words of the prompt, for Magentic-One and tau-bench. Magentic-One's WebSurfer has
  empty prompts in the source, because of its images; they stand as one token.
* The fixed prompt is ``system_prompt`` if a row has one, or the system message if the prompt begins with it.
* There is one time stamp per call, so that the time between two is neither the server's nor the client's: ``delay_s``
  and ``llm_s`` are unknown, and tools are not told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from kvflow.trace.importers.base import (
    CHARS_PER_TOKEN,
    SLICE_CHARS,
    Clock,
    Importer,
    Json,
    Row,
    Text,
    digest,
    estimated_tokens,
)
from kvflow.trace.importers.sessionrow import framework
from kvflow.trace.schema import Event, LLMCall, Piece, Prompt, WorkflowEnd, WorkflowStart

_OPENINGS = (
    (
        "magentic",
        "Orchestrator",
        re.compile(r"(user: Below I will present you a request|assistant: We are working to)"),
    ),
    ("magentic", "Coder", re.compile(r"system: [^\n]*\nSolve tasks using your coding")),
    ("magentic", "FileSurfer", re.compile(r"system: [^\n]*\n\s*When given a user query, use available functions")),
    ("magentic", "WebSurfer", re.compile(r"$")),
    ("tau-bench", "user_simulator", re.compile(r"Hi! How can I help you today\?")),
)
"""How prompts of a framework's agents begin."""
_NEXT_MESSAGE = re.compile(r"\n\n(?:user|assistant|tool): ")
_BEFORE_ANSWER = re.compile(r"\s*(?:assistant: )?")


class _Call(Row):
    t: Clock | None = None
    shared: Annotated[int, Field(ge=0)] = 0
    suffix: Text
    output: Text


class _Session(Row):
    session_id: str
    group: str | None = None
    agent: str | None = None
    framework: str | None = None
    system_prompt: Text = ""
    calls: Annotated[list[_Call], Field(min_length=1)]


class PromptImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "prompts"
    notes = "t is since the start of a session; tools and their times are unknown"

    @classmethod
    def fits(cls, row: Json) -> bool:
        """Calls whose prompts are told by what they share."""
        calls = row.get("calls")
        return isinstance(calls, list) and any(isinstance(call, dict) and "suffix" in call for call in calls)

    def events(self, row: str) -> Sequence[Event]:
        """Events of one session."""
        session = _Session.model_validate_json(row)
        workflow = self.names.unique(session.session_id)
        thread = _Thread(workflow, session)
        calls: list[Event] = []
        prompt = ""
        for number, call in enumerate(session.calls):
            if call.shared > len(prompt):
                raise ValueError(f"calls.{number}.shared: the prompt before it has {len(prompt)} characters")
            prompt = prompt[: call.shared] + call.suffix
            calls.append(thread.ask(f"c{number}", prompt, call))
        kind = framework(session.framework or session.agent or "agent", None)
        if session.framework and session.agent:
            kind += f"-{session.agent.lower()}"
        return [
            WorkflowStart(workflow=workflow, type=kind, group=session.group),
            *calls,
            WorkflowEnd(workflow=workflow, t=session.calls[-1].t),
        ]


class _Asked:
    """A call, with its prompt's text, as others may continue it."""

    def __init__(self, call: str, text: str, prompt: Prompt, output: str) -> None:
        self.call = call
        self.text = text
        self.tokens = prompt.tokens
        self.output = output
        self.output_tokens = estimated_tokens(output) if output else 0


class _Thread:
    """One session, as it is converted."""

    def __init__(self, workflow: str, session: _Session) -> None:
        self._workflow = workflow
        self._named = session.agent or session.framework or "agent"
        self._system = session.system_prompt
        self._latest: dict[str, _Asked] = {}

    def ask(self, name: str, text: str, call: _Call) -> LLMCall:
        """Add a call."""
        agent = self._agent(text)
        full = self._system + text
        prompt = self._prompt(name, full)
        asked = _Asked(name, full, prompt, call.output)
        self._latest[agent] = asked
        return LLMCall(
            workflow=self._workflow,
            t=call.t,
            agent=agent,
            call=name,
            prompt=prompt,
            output=f"{digest(call.output)}.{asked.output_tokens}",
            output_tokens=asked.output_tokens,
            fixed_tokens=self._fixed_tokens(text, prompt),
        )

    def _agent(self, text: str) -> str:
        for named, agent, opening in _OPENINGS:
            if named in self._named.lower() and opening.match(text):
                return agent
        return framework(self._named, None)

    def _prompt(self, name: str, text: str) -> Prompt:
        if not text:
            return Prompt(add=(Piece(f"{self._workflow}/{name}/unseen", 1),))
        base, kept_tokens, kept_chars = None, 0, 0
        for asked in self._latest.values():
            tokens, chars = _kept(asked, text)
            if tokens > kept_tokens:
                base, kept_tokens, kept_chars = asked.call, tokens, chars
        return Prompt(base=base, keep_tokens=kept_tokens, add=tuple(_pieces(text[kept_chars:])))

    def _fixed_tokens(self, text: str, prompt: Prompt) -> int | None:
        chars = len(self._system)
        if not chars and text.startswith("system: "):
            following = _NEXT_MESSAGE.search(text)
            chars = following.start() if following else 0
        return min(int(chars / CHARS_PER_TOKEN), prompt.tokens) or None


def _kept(asked: _Asked, text: str) -> tuple[int, int]:
    """Tokens and characters that a prompt keeps of a call's context."""
    shared = common_characters(asked.text, text)
    if shared < len(asked.text):
        tokens = min(int(shared / CHARS_PER_TOKEN), asked.tokens)
        return tokens, min(shared, round(tokens * CHARS_PER_TOKEN))
    before = _BEFORE_ANSWER.match(text, shared)
    answer_at = before.end() if before else shared
    answer = asked.output.strip()
    if answer and text.startswith(answer, answer_at):
        return asked.tokens + asked.output_tokens, answer_at + len(answer)
    return asked.tokens, shared


def _pieces(text: str) -> list[Piece]:
    pieces: list[Piece] = []
    for start in range(0, len(text), SLICE_CHARS):
        part = text[start : start + SLICE_CHARS]
        tokens = estimated_tokens(part)
        pieces.append(Piece(f"{digest(part)}.{tokens}", tokens))
    return pieces


def common_characters(one: str, other: str) -> int:
    """Length of what two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
