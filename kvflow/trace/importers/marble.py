"""Results of MARBLE (MultiAgentBench): agents that work side by side, iteration by iteration.

A row is one run: ``iterations`` with what each agent was assigned, what it answered, and a summary. Nothing was timed,
and tokens were counted for whole runs only.

Assumed:

* In an iteration every agent with a result is a thread of its own, spawned together and joined together; then the
  planner sums up, if there is a summary.
* An agent's prompt is its name, the task, and its assignment if that is not the task itself. Its answer is what the
  model said and, if it called a function, that call; the source has no arguments, so that it stands as 30 tokens.
* The planner's prompt is its name, the task, and the results of the iteration. Talks between agents and the planning
  of assignments are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from kvflow.trace.importers.base import (
    Importer,
    Json,
    Names,
    NoNull,
    NoNullMapping,
    Row,
    Text,
    digest,
    estimated_tokens,
)
from kvflow.trace.importers.contexts import Contexts, text_piece
from kvflow.trace.importers.threads import Timed, interleave
from kvflow.trace.schema import (
    MAIN_THREAD,
    Event,
    Join,
    LLMCall,
    Spawn,
    ThreadEvent,
    ToolEnd,
    ToolStart,
    WorkflowEnd,
    WorkflowStart,
)

FUNCTION_CALL_TOKENS = 30
PLANNER = "planner"
_RESULT = re.compile(
    r"(?:Result from the model:)?(?P<model>.*?)\n?Result from the function:(?P<function>.*)", re.DOTALL
)
_FUNCTION_NAME = re.compile(r'"function_name":\s*"(\w+)"')


def _result(value: Any) -> Any:
    """Let ``{agent: text}`` stand for ``{"agent_id": agent, "result": text}``."""
    if isinstance(value, dict) and "agent_id" not in value and len(value) == 1:
        agent, result = next(iter(value.items()))
        return {"agent_id": agent, "result": result}
    return value


class _Result(Row):
    agent_id: str
    result: Text = ""


class _Iteration(Row):
    task_assignments: Annotated[dict[str, Text], NoNullMapping] = Field(default_factory=dict)
    task_results: Annotated[tuple[Annotated[_Result, BeforeValidator(_result)], ...], NoNull] = ()
    summary: Text = ""


class _Run(Row):
    session_id: str
    group: str | None = None
    domain: str | None = None
    task: Text = ""
    iterations: Annotated[list[_Iteration], Field(min_length=1)]


class MarbleImporter(Importer):
    """One workflow per row; see the module."""

    format: ClassVar[str] = "marble"
    notes = "prompts are put together from tasks, assignments and results; nothing was counted or timed"

    @classmethod
    def fits(cls, row: Json) -> bool:
        """Iterations with results."""
        iterations = row.get("iterations")
        return isinstance(iterations, list) and any(
            isinstance(each, dict) and "task_results" in each for each in iterations
        )

    def events(self, row: str) -> Sequence[Event]:
        """Events of one run."""
        run = _Run.model_validate_json(row)
        workflow = self.names.unique(run.session_id)
        converted = _Converted(workflow, run)
        if not converted.calls:
            raise ValueError("iterations: nobody has a result")
        return [
            WorkflowStart(workflow=workflow, type=f"marble-{run.domain or 'task'}", group=run.group),
            *interleave(converted.threads),
            WorkflowEnd(workflow=workflow),
        ]


class _Converted:
    """One run, as it is converted.

    Attributes:
        calls: how many LLM calls there are.
    """

    def __init__(self, workflow: str, run: _Run) -> None:
        self.calls = 0
        self.threads: dict[str, list[Timed]] = {MAIN_THREAD: []}
        self._names = Names()
        self._workflow = workflow
        self._task = run.task
        self._planner = Contexts()
        for number, iteration in enumerate(run.iterations, start=1):
            self._add(number, iteration)

    def _add(self, number: int, iteration: _Iteration) -> None:
        main = self.threads[MAIN_THREAD]
        children: list[str] = []
        for result in iteration.task_results:
            child = self._names.unique(f"{result.agent_id}/{number}")
            children.append(child)
            main.append(Timed(None, Spawn(workflow=self._workflow, child=child)))
            assigned = iteration.task_assignments.get(result.agent_id, "")
            self.threads[child] = [Timed(None, event) for event in self._agent(child, result, assigned)]
        main += [Timed(None, Join(workflow=self._workflow, child=child)) for child in children]
        if iteration.summary and children:
            texts = [PLANNER, self._task, *(result.result for result in iteration.task_results)]
            main.append(Timed(None, self._call(MAIN_THREAD, PLANNER, texts, iteration.summary, 0)))

    def _agent(self, thread: str, result: _Result, assigned: str) -> Iterator[ThreadEvent]:
        agent = result.agent_id
        texts = [f"You are {agent}", self._task, *([assigned] if assigned not in ("", "<task>") else [])]
        parts = _RESULT.fullmatch(result.result)
        said, function = (parts["model"].strip(), parts["function"]) if parts else (result.result, "")
        yield self._call(thread, agent, texts, said, FUNCTION_CALL_TOKENS if function else 0)
        if function:
            name = _FUNCTION_NAME.search(function)
            tool_call = f"t{self.calls}"
            yield ToolStart(
                workflow=self._workflow,
                thread=thread,
                agent=agent,
                tool_call=tool_call,
                tool=name[1] if name else "function",
            )
            yield ToolEnd(workflow=self._workflow, thread=thread, tool_call=tool_call)

    def _call(self, thread: str, agent: str, texts: Sequence[str], answer: str, more_tokens: int) -> LLMCall:
        self.calls += 1
        name = f"c{self.calls}"
        pieces = [text_piece(text) for text in texts if text]
        tokens = (estimated_tokens(answer) if answer else 0) + more_tokens
        contexts = self._planner if agent == PLANNER else Contexts()
        call = LLMCall(
            workflow=self._workflow,
            thread=thread,
            agent=agent,
            call=name,
            prompt=contexts.prompt(pieces),
            output=f"{digest(answer)}.{tokens}" if answer else f"{self._workflow}/{name}",
            output_tokens=tokens,
        )
        contexts.note(agent, name, pieces, None)
        return call
