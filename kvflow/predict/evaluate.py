"""Evaluation of the models over the events of a trace: ask first, tell afterwards.

Prequential (Dawid, "The prequential approach", JRSS A 147, 1984): every model predicts what comes next from what came
before, in the order of the trace, and learns from it then, starting with nothing known. The models are a server's, but
for who runs next and how many steps lie before: a server goes by graphs for that, declared or learned, and here
transitions say it. Tool durations are also predicted from the other workflows of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kvflow.predict.trials.agents import AgainScores, AgentScores, AgentTrial
from kvflow.predict.trials.tools import ToolScores, ToolTrial
from kvflow.predict.trials.uses import UseScores, UseTrial
from kvflow.trace import Event, LLMCall, WorkflowStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How well one trace is predicted; None where it has nothing to be predicted.

    Attributes:
        workflows: number of workflows.
        llm_calls: number of LLM calls.
        tools: durations of tool calls.
        agents: who runs next.
        again: whether a context is used again.
        uses: when it is used next, by what the forecast is based on (tools, steps ahead, pauses), and all together.
    """

    workflows: int
    llm_calls: int
    tools: ToolScores | None
    agents: AgentScores | None
    again: AgainScores | None
    uses: dict[str, UseScores]

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON types."""
        return asdict(self)


def evaluate(events: Iterable[Event]) -> Evaluation:
    """Run every model over a trace.

    Events that do not fit (of a workflow that has not started, an end without a start) are left out. Traces without
    times only tell who runs next and how often contexts are used.

    Cost: about 0.1 ms an event.
    """
    tools, agents, uses = ToolTrial(), AgentTrial(), UseTrial()
    workflows = llm_calls = 0
    for event in events:
        workflows += isinstance(event, WorkflowStart)
        llm_calls += isinstance(event, LLMCall)
        for trial in (tools, agents, uses):
            trial.take(event)
    agents.finish()
    uses.finish()
    return Evaluation(
        workflows=workflows,
        llm_calls=llm_calls,
        tools=tools.scores(),
        agents=agents.agent_scores(),
        again=agents.again_scores(),
        uses=uses.scores(),
    )
