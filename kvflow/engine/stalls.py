"""How long requests waited for loads: in all for each workflow, and the latest of them one by one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

_MOST_WORKFLOWS = 4096
_LATEST_REQUESTS = 256


@dataclass(slots=True, kw_only=True)
class WorkflowStall:
    """What a workflow's requests waited.

    Attributes:
        requests: that waited at all.
        seconds: of all of them, also of those that waited at the same time.
    """

    workflow_id: str
    requests: int = 0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class RequestStall:
    """What one request waited, retracted attempts included.

    Attributes:
        request_id: SGLang's, which is in its answer.
        at_s: on the control plane's clock, when it had last waited.
    """

    request_id: str
    workflow_id: str
    agent: str
    at_s: float
    seconds: float = 0.0


class Stalls:
    """Adds up waits in bounded memory: what has waited least recently is forgotten. Takes no part in any decision."""

    def __init__(self) -> None:
        self._workflows: OrderedDict[str, WorkflowStall] = OrderedDict()
        self._requests: OrderedDict[str, RequestStall] = OrderedDict()

    def add(self, workflow_id: str, agent: str, request_id: str, at_s: float, seconds: float) -> None:
        """A request has waited."""
        workflow = self._workflows.setdefault(workflow_id, WorkflowStall(workflow_id=workflow_id))
        request = self._requests.get(request_id)
        if request is None:
            request = RequestStall(request_id=request_id, workflow_id=workflow_id, agent=agent, at_s=at_s)
            self._requests[request_id] = request
            workflow.requests += 1
        workflow.seconds += seconds
        request.seconds += seconds
        request.at_s = at_s
        _keep(self._workflows, workflow_id, _MOST_WORKFLOWS)
        _keep(self._requests, request_id, _LATEST_REQUESTS)

    def read(self, workflow_id: str | None = None, limit: int = 100) -> dict[str, list[dict[str, Any]]]:
        """What is remembered, of one workflow if it is named.

        Returns:
            Up to ``limit`` ``workflows``, those that waited longest first, and as many ``requests``, the latest last.
        """

        def wanted(stall: WorkflowStall | RequestStall) -> bool:
            return workflow_id in (None, stall.workflow_id)

        workflows = sorted(filter(wanted, self._workflows.values()), key=lambda stall: -stall.seconds)[:limit]
        requests = list(filter(wanted, self._requests.values()))
        latest = requests[max(0, len(requests) - limit) :]
        return {"workflows": [asdict(stall) for stall in workflows], "requests": [asdict(stall) for stall in latest]}


def _keep(table: OrderedDict[str, Any], latest: str, most: int) -> None:
    table.move_to_end(latest)
    if len(table) > most:
        table.popitem(last=False)
