"""kvflow: SGLang's KV cache, managed by what a multi-agent program does next.

    import kvflow

    client = kvflow.instrument(OpenAI(base_url="http://localhost:30000/v1"))

    @kvflow.agent("planner", fixed_prompt_messages=1)
    def plan(task): ...

    with kvflow.workflow("code_review"):
        plan("the parser")

Names are imported when they are first used, so that ``import kvflow`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvflow.client import (
        StepContext,
        Workflow,
        agent,
        carry,
        configure,
        current,
        extra_body,
        feedback,
        flush,
        httpx_hook,
        instrument,
        segment,
        step,
        tool,
        tool_call,
        uninstrument,
        workflow,
    )
    from kvflow.graph import END, START, AgentStepGraph

    __version__: str

__all__ = [
    "END",
    "START",
    "AgentStepGraph",
    "StepContext",
    "Workflow",
    "__version__",
    "agent",
    "carry",
    "configure",
    "current",
    "extra_body",
    "feedback",
    "flush",
    "httpx_hook",
    "instrument",
    "segment",
    "step",
    "tool",
    "tool_call",
    "uninstrument",
    "workflow",
]

_GRAPH = frozenset({"END", "START", "AgentStepGraph"})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: Any = _version()
    else:
        value = getattr(import_module("kvflow.graph" if name in _GRAPH else "kvflow.client"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvflow")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
