"""Between clients and server: who predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvflow.engine import PromptClaim
from kvflow.hints import DecodedFact
from kvflow.trace import LLMCall, Program, ThreadEvent, ToolStart


@dataclass(slots=True, kw_only=True)
class Thread:
    """A thread of a workflow and where it is: the truth, for oracles only.

    Attributes:
        workflow_id, workflow_type: what the server knows it as; a spawned thread is a workflow of its own.
        events: its program.
        position: the event it has come to.
        tools_s: when the tools under way will have answered, by tool call.
        tool_s: how long a tool takes.
        delay_s: what the client does before a call.
    """

    workflow_id: str
    workflow_type: str
    events: Sequence[ThreadEvent]
    tool_s: Callable[[ToolStart], float]
    delay_s: Callable[[LLMCall], float]
    position: int = 0
    tools_s: dict[str, float] = field(default_factory=dict)


class Brain(Protocol):
    """Turns what clients say into predictions for the coordinator."""

    def take(self, facts: Sequence[DecodedFact], *, with_request: bool = False) -> None:
        """A client states facts, with a request or without."""
        ...

    def answered(self, claim: PromptClaim) -> None:
        """A request has been answered."""
        ...

    def waited(self, queue_s: float, reload_s: float) -> None:
        """A request whose context was gone had to wait for its turn, and for what it lacked."""
        ...

    def refresh(self) -> None:
        """Decisions are about to be made."""
        ...

    def begin(self, program: Program) -> None:
        """A workflow starts: the truth, for oracles only."""
        ...

    def reach(self, thread: Thread, *, asking: bool = False) -> None:
        """A thread has come to its next event, or asks now: the truth, for oracles only."""
        ...
