"""Who predicts in a simulation: the control plane of the real server, or an oracle that has read the trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import simpy

from kvflow.config import Settings
from kvflow.control import ControlPlane
from kvflow.engine import Coordinator, PromptClaim
from kvflow.graph import END
from kvflow.hints import DecodedFact, StepFact
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from kvflow.sim.ports import Thread
from kvflow.sim.profile import Profile
from kvflow.trace import LLMCall, Program, ToolEnd, ToolStart

_REFRESH_S = 0.25
_LOOK_AHEAD_EVENTS = 64
_GAP_WEIGHT = 0.25


class LearnedBrain:
    """The control plane and the coordinator, connected as they are in the server."""

    def __init__(self, env: simpy.Environment, settings: Settings, coordinator: Coordinator) -> None:
        self.plane = ControlPlane(settings, lambda: env.now)
        self._env = env
        self._coordinator = coordinator
        self._refreshed_s = 0.0

    def take(self, facts: Sequence[DecodedFact], *, with_request: bool = False) -> None:
        """State facts to the control plane, and pass on what it makes of them."""
        self._send(self.plane.take(facts, with_request=with_request).updates)

    def answered(self, claim: PromptClaim) -> None:
        """Tell the control plane that a request has been answered."""
        self.plane.answered(claim.workflow_id, claim.agent)

    def waited(self, queue_s: float, reload_s: float) -> None:
        """Tell the control plane what an eviction has cost."""
        self.plane.forecaster.waited(queue_s, reload_s)

    def refresh(self) -> None:
        """Tick, and let what has expired expire, as often as the server does."""
        self._coordinator.tick(self._env.now)
        if self._env.now - self._refreshed_s >= _REFRESH_S:
            self._refreshed_s = self._env.now
            self._send(self.plane.expire())

    def begin(self, program: Program) -> None:
        """Nothing: the truth is not for us."""

    def reach(self, thread: Thread, *, asking: bool = False) -> None:
        """Nothing."""

    def _send(self, updates: list[WorkflowUpdate]) -> None:
        for update in updates:
            self._coordinator.apply(update)


class SilentBrain:
    """Predicts nothing: for orders that do not look at claims."""

    def take(self, facts: Sequence[DecodedFact], *, with_request: bool = False) -> None:
        """Nothing."""

    def answered(self, claim: PromptClaim) -> None:
        """Nothing."""

    def waited(self, queue_s: float, reload_s: float) -> None:
        """Nothing."""

    def refresh(self) -> None:
        """Nothing."""

    def begin(self, program: Program) -> None:
        """Nothing."""

    def reach(self, thread: Thread, *, asking: bool = False) -> None:
        """Nothing."""


class OracleBrain:
    """Predicts from the trace itself: when every context is used next, tools taking exactly what they will take.

    What no trace can tell in a closed loop is how long the server will take; it is taken to be unloaded.
    """

    def __init__(self, env: simpy.Environment, profile: Profile, coordinator: Coordinator) -> None:
        self._env = env
        self._profile = profile
        self._coordinator = coordinator
        self._started: dict[str, tuple[float, float]] = {}

    def take(self, facts: Sequence[DecodedFact], *, with_request: bool = False) -> None:
        """Only ends are news."""
        for item in facts:
            if isinstance(item.fact, StepFact) and item.fact.agent == END:
                self._coordinator.apply(
                    WorkflowUpdate(workflow_id=item.fact.workflow_id, workflow_type="", retired=True)
                )

    def answered(self, claim: PromptClaim) -> None:
        """Nothing: the thread comes to its next event now."""

    def waited(self, queue_s: float, reload_s: float) -> None:
        """Nothing."""

    def refresh(self) -> None:
        """Tick."""
        self._coordinator.tick(self._env.now)

    def begin(self, program: Program) -> None:
        """The next workflow of the type comes as soon, on average, as the last ones came."""
        kind, now_s = program.start.type, self._env.now
        last_s, gap_s = self._started.get(kind, (now_s, 0.0))
        gap_s += _GAP_WEIGHT * (now_s - last_s - gap_s)
        self._started[kind] = (now_s, gap_s)
        agents = sorted({call.agent for call in program.calls})
        claims = tuple(ClaimPrediction(agent=agent, steps=1.0, due_s=now_s + gap_s) for agent in agents)
        self._coordinator.apply(WorkflowUpdate(workflow_id=kind, workflow_type=kind, claims=claims, expected=True))

    def reach(self, thread: Thread, *, asking: bool = False) -> None:
        """Say when each context of the thread is used next."""
        uses: dict[str, list[tuple[float, float]]] = {}
        for agent, asked_s, answered_s in self._calls(thread, asking=asking):
            uses.setdefault(agent, []).append((asked_s, answered_s))
        claims = []
        for index, (agent, times) in enumerate(uses.items()):
            if asking and index == 0:
                claims.append(_under_way(agent, times, self._env.now))
            else:
                claims.append(ClaimPrediction(agent=agent, steps=1.0, due_s=times[0][0]))
        self._coordinator.apply(
            WorkflowUpdate(workflow_id=thread.workflow_id, workflow_type=thread.workflow_type, claims=tuple(claims))
        )

    def _calls(self, thread: Thread, *, asking: bool) -> Iterator[tuple[str, float, float]]:
        """The calls that come: agent, when it asks, and when it is answered; the first asks now if ``asking``."""
        at_s = self._env.now
        tools_s = dict(thread.tools_s)
        for event in thread.events[thread.position : thread.position + _LOOK_AHEAD_EVENTS]:
            if isinstance(event, LLMCall):
                asked_s = at_s if asking else at_s + thread.delay_s(event)
                asking = False
                at_s = asked_s + event.output_tokens * self._profile.decode_step_s
                yield event.agent, asked_s, at_s
            elif isinstance(event, ToolStart):
                tools_s[event.tool_call] = at_s + thread.tool_s(event)
            elif isinstance(event, ToolEnd):
                at_s = max(at_s, tools_s.get(event.tool_call, at_s))


def _under_way(agent: str, times: list[tuple[float, float]], now_s: float) -> ClaimPrediction:
    """The claim of an agent that asks now, and what becomes of its context once it has been answered."""
    again = len(times) > 1
    return ClaimPrediction(
        agent=agent,
        steps=1.0,
        probability=float(again),
        since_s=now_s,
        requests=1,
        pause_s=times[1][0] - times[0][1] if again else 0.0,
    )
