"""The facts a program would send while it runs, as kvflow's client does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvflow.graph import END
from kvflow.hints import step_action, tool_action
from kvflow.hints.fields import MAX_IDENTIFIER, MAX_NAME
from kvflow.trace import LLMCall, ToolStart


@dataclass(slots=True)
class Steps:
    """The steps of one thread. A step ends when another agent's begins."""

    workflow_id: str
    workflow_type: str
    parent_id: str | None = None
    tenant: str | None = None
    agent: str | None = None
    count: int = 0

    def asks(self, call: LLMCall) -> list[dict[str, Any]]:
        """An agent is about to ask."""
        facts: list[dict[str, Any]] = []
        agent = call.agent[:MAX_NAME]
        if agent != self.agent:
            if self.agent is not None:
                facts.append(self._step(self.agent, "end", None))
            self.agent = agent
            self.count += 1
        facts.append(self._step(agent, "start", call.fixed_tokens))
        return facts

    def tool(self, start: ToolStart, event: str, took_s: float | None = None) -> dict[str, Any]:
        """An agent's tool starts, or ends and has taken so long."""
        return tool_action(
            workflow_id=self.workflow_id,
            agent=self.agent or start.agent[:MAX_NAME],
            tool=start.tool[:MAX_NAME],
            verb=start.verb[:MAX_NAME] if start.verb else None,
            call_id=start.tool_call[:MAX_IDENTIFIER],
            event=event,
            took_s=took_s,
        )

    def ends(self) -> dict[str, Any]:
        """The workflow is over."""
        return step_action(workflow_id=self.workflow_id, agent=END)

    def _step(self, agent: str, event: str, fixed_tokens: int | None) -> dict[str, Any]:
        return step_action(
            workflow_id=self.workflow_id,
            workflow_type=self.workflow_type,
            parent_workflow_id=self.parent_id,
            tenant=self.tenant,
            agent=agent,
            step_id=f"{self.count}:{agent}",
            event=event,
            fixed_prompt_tokens=fixed_tokens,
        )
