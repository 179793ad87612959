"""A trace played more than once, each time as new workflows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvflow.errors import TraceError
from kvflow.trace.program import Program
from kvflow.trace.schema import BLOCKS, LLMCall, ThreadEvent


def repeated(programs: Sequence[Program], times: int) -> list[Program]:
    """Play programs several times, as a service sees the same kinds of work again, but not the same work.

    What programs of different tasks have in common, such as system prompts, stays common to all. Every other content
    is another one in each repetition, and so are workflows and tasks.

    Args:
        programs: to play.
        times: at least 1, which gives the programs as they are.

    Raises:
        TraceError: ``times`` is less, or it is more and texts are known by their blocks only, which do not say where
            what tasks have in common ends.

    Cost: O(events) per repetition.
    """
    if times < 1:
        raise TraceError(f"programs can be played once or more, not {times} times")
    common = _common(programs)
    if times > 1 and any(content.startswith(BLOCKS) for content in common):
        raise TraceError("programs of a trace of block hashes can be played only once: leave --repeat out")
    return [*programs, *(_anew(program, number, common) for number in range(1, times) for program in programs)]


def _common(programs: Sequence[Program]) -> set[str]:
    """Contents that programs of different tasks have in common, and those that are fixed for all of a type."""
    task_of: dict[str, str] = {}
    common: set[str] = set()
    for program in programs:
        task = program.start.group or program.start.workflow
        for call in program.calls:
            for content in (call.output, *(piece.content for piece in call.prompt.add)):
                if task_of.setdefault(content, task) != task:
                    common.add(content)
            common.update(_fixed(call))
    return common


def _fixed(call: LLMCall) -> Iterator[str]:
    """Contents that lie within the fixed part of a prompt that begins anew."""
    end = 0
    for piece in () if call.prompt.base is not None else call.prompt.add:
        end += piece.tokens
        if end <= (call.fixed_tokens or 0):
            yield piece.content


def _anew(program: Program, number: int, common: set[str]) -> Program:
    def name(content: str) -> str:
        return content if content in common else f"{content}~{number}"

    def event_anew(event: ThreadEvent) -> ThreadEvent:
        update: dict[str, object] = {"workflow": workflow}
        if isinstance(event, LLMCall):
            pieces = tuple(piece._replace(content=name(piece.content)) for piece in event.prompt.add)
            update |= {"prompt": event.prompt.model_copy(update={"add": pieces}), "output": name(event.output)}
        return event.model_copy(update=update)

    start = program.start
    workflow = f"{start.workflow}~{number}"
    group = start.group and f"{start.group}~{number}"
    return Program(
        start=start.model_copy(update={"workflow": workflow, "group": group}),
        threads={thread: [event_anew(event) for event in events] for thread, events in program.threads.items()},
        ended=program.ended,
    )
