"""What the clients of one round saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """One LLM call. Times are seconds since the round began.

    Attributes:
        late_s: how much later it was asked than the trace demands; what the client itself costs.
        first_s: when its first token came; None if none did.
        queue_s: how long it waited to be run, also after it was taken out of the batch to make room, which may be after
            its first token; None if the server does not say.
        longest_pause_s: between two pieces of its answer.
        device_tokens: of its prompt, found in the cache on this tier; as the next two.
        recomputed_tokens: of its prompt, computed although they had been computed before its own first token came.
        error: why it failed; empty if it did not.
    """

    workflow: str
    thread: str
    agent: str
    call: str
    asked_s: float
    late_s: float = 0.0
    first_s: float | None = None
    ended_s: float = 0.0
    queue_s: float | None = None
    longest_pause_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    storage_tokens: int = 0
    recomputed_tokens: int = 0
    error: str = ""

    @property
    def queued_before_s(self) -> float:
        """Of its wait, what can have been before its first token, or its end if there was none."""
        first_s = self.ended_s if self.first_s is None else self.first_s
        return min(self.queue_s or 0.0, first_s - self.asked_s)


@dataclass(slots=True, kw_only=True)
class ToolRecord:
    """One tool call."""

    workflow: str
    thread: str
    tool: str
    start_s: float
    end_s: float


@dataclass(slots=True, kw_only=True)
class WorkflowRecord:
    """One workflow.

    Attributes:
        arrived_s: when it could have started ...
        started_s: ... and when it did, as not too many ran by then.
        failed_calls: its calls that got no answer, or not all of it.
    """

    workflow: str
    arrived_s: float
    started_s: float
    ended_s: float
    failed_calls: int

    @property
    def completion_s(self) -> float:
        """From its arrival to its end."""
        return self.ended_s - self.arrived_s

    @property
    def run_s(self) -> float:
        """From its start to its end: without the wait until fewer than ``--concurrency`` ran."""
        return self.ended_s - self.started_s


@dataclass(slots=True, kw_only=True)
class Round:
    """One round of one arm.

    Attributes:
        kept: it was played by an earlier run.
        span_s: from the first arrival to the last end.
        device_tokens: what the server's device tier holds; None if it does not say.
        answers: a digest of all that was answered.
        stall_s: time forward passes waited for load-backs; None where nobody measures that.
        loaded_tokens: what came over the link from the host, for whatever reason; None where nobody measures that.
        server_cpu_s: processor time of the server's processes; None where they cannot be seen.
        client_cpu_s: of the clients' process.
        peak_memory_bytes: of the server's processes; None where they cannot be seen.
        stats: what kvflow counted, as in ``/kvflow/v1/stats``; empty without it.
        broken_seams: of the server's kvflow, those that do not hold; None without it.
    """

    arm: str
    index: int
    seed: int
    kept: bool = False
    span_s: float = 0.0
    device_tokens: int | None = None
    answers: str = ""
    stall_s: float | None = None
    loaded_tokens: int | None = None
    server_cpu_s: float | None = None
    client_cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    broken_seams: list[str] | None = None
    calls: list[CallRecord] = field(default_factory=list)
    tools: list[ToolRecord] = field(default_factory=list)
    workflows: list[WorkflowRecord] = field(default_factory=list)
