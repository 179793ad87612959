"""Tasks of the Berkeley Function Calling Leaderboard, as the program that solves them.

Rows are multi-turn tasks (``turns`` with the user's messages and the true calls) or parallel ones (``question`` and
``ground_truth``). Multi-turn rows only name the classes whose tools they use; the docs of these are looked for in a
file beside the trace whose rows have ``class`` and ``functions``. Without it prompts lack them.

Assumed:

* Every function's docs are one content, in the order of the classes; of a multi-turn task those are the fixed prompt.
  Docs that come later (``missed_function``) stand after the user's message from then on.
* A turn is one LLM call that asks for all true calls, and one that closes it, of 50 tokens (the source has no answers
  of models). Calls of a turn run one after another, because they share state; those of parallel tasks at once, and
  nothing follows them.
* No time is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvflow.errors import TraceError
from kvflow.trace.importers.base import Importer, Json, NoNull, NoNullMapping, Row, Text
from kvflow.trace.importers.contexts import text_piece
from kvflow.trace.importers.conversation import Conversation, text_part
from kvflow.trace.io import numbered_rows, open_text
from kvflow.trace.schema import Event, LLMCall, ToolEnd, ToolStart, WorkflowEnd, WorkflowStart

CLOSING_TOKENS = 50
FILES_BESIDE = 64
"""How many files beside the trace are looked at for docs."""
AGENT = "assistant"


class _Message(Row):
    content: Text = ""


class _TrueCall(Row):
    call: Text = ""
    name: str = "function"
    result: Text = ""
    seconds: float | None = None


class _Turn(Row):
    user: tuple[_Message, ...] = ()
    ground_truth: tuple[_TrueCall, ...] = ()


class _Row(Row):
    session_id: str
    group: str | None = None
    category: str = "bfcl"


class _MultiTurn(_Row):
    involved_classes: Annotated[tuple[str, ...], NoNull] = ()
    excluded_function: Annotated[tuple[str, ...], NoNull] = ()
    missed_function: Annotated[dict[str, list[str]], NoNullMapping] = Field(default_factory=dict)
    turns: Annotated[list[_Turn], Field(min_length=1)]


class _Parallel(_Row):
    question: list[list[_Message]]
    function: tuple[dict[str, Any], ...]
    ground_truth: Annotated[list[dict[str, Any]], Field(min_length=1)]


class BFCLImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "bfcl"
    notes = "the program that solves the task; answers of models and times are not in the source"

    def __init__(self, sample: Sequence[Json], path: Path) -> None:
        super().__init__(sample, path)
        multi_turn = any("turns" in row for row in sample)
        self._docs = _docs_beside(path) if multi_turn else {}
        if multi_turn and not self._docs:
            self.notes = f"{self.notes}; no file beside it has the docs of its tools, so that prompts lack them"

    @classmethod
    def fits(cls, row: Json) -> bool:
        """A task of either kind."""
        return {"turns", "involved_classes"} <= row.keys() or {"question", "function", "ground_truth"} <= row.keys()

    def events(self, row: str) -> Sequence[Event]:
        """Events of one task."""
        if _Kind.model_validate_json(row).turns is None:
            task: _Row = _Parallel.model_validate_json(row)
        else:
            task = _MultiTurn.model_validate_json(row)
        workflow = self.names.unique(task.session_id)
        solved = _Solved(workflow)
        steps = solved.turns(task, self._docs) if isinstance(task, _MultiTurn) else solved.parallel(task)
        return [
            WorkflowStart(workflow=workflow, type=f"bfcl-{task.category}", group=task.group),
            *steps,
            WorkflowEnd(workflow=workflow),
        ]


class _Kind(Row):
    turns: Any = None


class _Solved:
    """One task, as it is solved."""

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._conversation = Conversation(workflow)
        self._parts = 0
        self._calls = 0
        self._tools = 0
        self._fixed_tokens: int | None = None

    def turns(self, task: _MultiTurn, docs: Mapping[str, Mapping[str, str]]) -> Iterator[Event]:
        """Solve a multi-turn task."""
        missed = {name for names in task.missed_function.values() for name in names}
        known = {name: text for each in task.involved_classes for name, text in docs.get(each, {}).items()}
        self._fix([text for name, text in known.items() if name not in missed and name not in task.excluded_function])
        for number, turn in enumerate(task.turns):
            for message in turn.user:
                self._hear(message.content)
            for name in task.missed_function.get(str(number), ()):
                self._hear(known.get(name, name))
            if turn.ground_truth:
                yield self._ask("".join(each.call for each in turn.ground_truth))
                for call in turn.ground_truth:
                    yield from self._tool([call.name], [call.seconds])
                    self._hear(call.result)
            yield self._ask(None)

    def parallel(self, task: _Parallel) -> Iterator[Event]:
        """Solve a task of parallel calls."""
        for each in task.function:
            self._hear(json.dumps(each, ensure_ascii=False))
        for message in (message for messages in task.question for message in messages):
            self._hear(message.content)
        yield self._ask(json.dumps(task.ground_truth, ensure_ascii=False))
        names = [next(iter(each), "function") for each in task.ground_truth]
        yield from self._tool(names, [None] * len(names))

    def _fix(self, docs: Sequence[str]) -> None:
        for text in docs:
            self._hear(text)
        self._fixed_tokens = self._conversation.new_tokens or None

    def _hear(self, text: str) -> None:
        self._parts += 1
        self._conversation.add(text_part(self._parts, text))

    def _ask(self, answer: str | None) -> LLMCall:
        self._calls += 1
        name = f"c{self._calls}"
        if not (self._conversation.asked or self._conversation.new_tokens):
            raise ValueError("turns.0.user: nothing is asked")
        prompt = self._conversation.ask(name, None)
        tokens = CLOSING_TOKENS if answer is None else text_piece(answer).tokens
        self._parts += 1
        text = answer or f"{self._workflow}/{name}"
        return LLMCall(
            workflow=self._workflow,
            agent=AGENT,
            call=name,
            prompt=prompt,
            output=self._conversation.answer(text_part(self._parts, text, tokens)),
            output_tokens=tokens,
            fixed_tokens=self._fixed_tokens,
        )

    def _tool(self, names: Sequence[str], seconds: Sequence[float | None]) -> Iterator[Event]:
        started = []
        for name in names:
            self._tools += 1
            started.append(f"t{self._tools}")
            yield ToolStart(workflow=self._workflow, agent=AGENT, tool_call=started[-1], tool=name or "function")
        for tool_call, took_s in zip(started, seconds, strict=True):
            yield ToolEnd(workflow=self._workflow, tool_call=tool_call, seconds=took_s)


def _docs_beside(path: Path) -> dict[str, dict[str, str]]:
    """Docs by class and function, out of the files in the trace's folder."""
    docs: dict[str, dict[str, str]] = {}
    for file in sorted(each for each in path.absolute().parent.iterdir() if each.is_file())[:FILES_BESIDE]:
        try:
            with open_text(file) as opened:
                for _, line in numbered_rows(file, opened):
                    row = json.loads(line)
                    if not isinstance(row, dict) or not {"class", "functions"} <= row.keys():
                        break
                    docs[str(row["class"])] = {
                        str(each["name"]): json.dumps(each, ensure_ascii=False) for each in row["functions"]
                    }
        except (TraceError, OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
    return docs
