"""Commands in the HTTP process: clipped, sent to the schedulers, and their answers brought together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvflow.engine import KvCommand
from kvflow.errors import ServerUnavailableError
from kvflow.hints import AgentTarget, DecodedCommand, Outcome, PromptTarget, Status, StepFact

if TYPE_CHECKING:
    from kvflow.patches.front import Front

_BEST_FIRST = (Status.ACCEPTED, Status.CLIPPED, Status.DEFERRED, Status.UNSUPPORTED, Status.REJECTED, Status.MISSING)
"""What counts where several replicas answer: a workflow lives on those its requests have gone to."""


class Terms:
    """How long something may hold that a command has said: so long the schedulers need the time, whatever else runs.

    Args:
        clock: seconds, as the schedulers are told them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until_s: float | None = None
        self._under_way = 0

    def sent(self, ttl_s: float) -> None:
        """A command begins to hold now."""
        self._until_s = max(self._until_s or 0.0, self._clock() + ttl_s)

    def begin(self, commands: Sequence[KvCommand]) -> float:
        """A request carries commands on its prompt, which begin to hold before it is answered; returns how long."""
        self._under_way += 1
        return max(command.ttl_s for command in commands)

    def end(self, ttl_s: float) -> None:
        """That request has been answered."""
        self._under_way -= 1
        self.sent(ttl_s)

    def run(self) -> bool:
        """Whether the schedulers need the time now: until it has passed the end of all that may hold."""
        if self._until_s is None:
            return self._under_way > 0
        if self._clock() > self._until_s:
            self._until_s = None
        return True


def prompt_commands(front: Front, commands: Sequence[DecodedCommand], step: StepFact | None) -> list[KvCommand]:
    """Commands on the prompt of the request they came with."""
    tenant = (step.tenant if step is not None else None) or ""
    return [_command(front, item, tenant) for item in commands if isinstance(item.command.target, PromptTarget)]


async def execute(front: Front, commands: Sequence[DecodedCommand], *, with_request: bool) -> list[Outcome]:
    """Execute commands, those on a prompt excepted; outcomes in the order of the commands, and counted."""
    outcomes: dict[int, Outcome] = {}
    sent: list[int] = []
    for index, item in enumerate(commands):
        if not isinstance(item.command.target, PromptTarget):
            sent.append(index)
        elif with_request:
            outcomes[index] = _outcome(item, Status.DEFERRED, "until the prompt has been computed")
        else:
            outcomes[index] = _outcome(item, Status.REJECTED, "no request carries it: name an agent or a workflow")
    if sent:
        resolved = [_command(front, commands[index], None) for index in sent]
        front.tell_time()
        front.terms.sent(max(command.ttl_s for command in resolved))
        try:
            replicas = await front.ask("commands", commands=[asdict(command) for command in resolved])
        except ServerUnavailableError as error:
            outcomes |= {index: _outcome(commands[index], Status.REJECTED, str(error)) for index in sent}
        else:
            problem = "; ".join(sorted({answer.error for answer in replicas if answer.error}))
            for place, index in enumerate(sent):
                answers = [answer.data["answers"][place] for answer in replicas if not answer.error]
                if answers:
                    outcomes[index] = _joined(front, commands[index], answers)
                else:
                    outcomes[index] = _outcome(commands[index], Status.UNSUPPORTED, problem)
    result = [outcomes[index] for index in range(len(commands))]
    front.plane.count(result)
    return result


def _joined(front: Front, item: DecodedCommand, answers: list[dict[str, Any]]) -> Outcome:
    """The best answer of all replicas; what was cut to the longest time allowed is clipped at best."""
    best = min(answers, key=lambda answer: _BEST_FIRST.index(Status(answer["status"])))
    most_s = front.settings.commands.max_ttl_s
    status, reason = Status(best["status"]), best["reason"]
    if status is Status.ACCEPTED and item.command.ttl_s is not None and item.command.ttl_s > most_s:
        return _outcome(item, Status.CLIPPED, f"for {most_s:g} s (commands.max_ttl_s)")
    return _outcome(item, status, reason)


def _command(front: Front, item: DecodedCommand, tenant: str | None) -> KvCommand:
    command, limits = item.command, front.settings.commands
    target = command.target
    ttl_s = min(command.ttl_s or limits.default_ttl_s, limits.max_ttl_s)
    common: dict[str, Any] = {"verb": item.verb, "ttl_s": ttl_s, "priority": command.priority}
    if command.tier is not None:
        common["tier"] = command.tier
    if isinstance(target, PromptTarget):
        return KvCommand(**common, tenant=tenant or "", start_tokens=target.start_tokens, end_tokens=target.end_tokens)
    return KvCommand(
        **common,
        tenant=front.plane.tenant_of(target.workflow_id),
        workflow_id=target.workflow_id,
        agent=target.agent if isinstance(target, AgentTarget) else None,
    )


def _outcome(item: DecodedCommand, status: Status, reason: str) -> Outcome:
    return Outcome(action_id=item.action_id, action_type=item.verb, status=status, reason=reason)
