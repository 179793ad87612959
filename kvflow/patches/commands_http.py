"""Commands in the HTTP process: clipped, sent to the schedulers, and their answers brought together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kvflow.engine import KvCommand
from kvflow.errors import ServerUnavailableError
from kvflow.hints import AgentTarget, DecodedCommand, Outcome, PromptTarget, Status, StepFact

if TYPE_CHECKING:
    from kvflow.patches.front import Admission, Front

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

    def begin(self) -> None:
        """A request carries commands on its prompt, which begin to hold before it is answered."""
        self._under_way += 1

    def end(self, ttl_s: float) -> None:
        """That request has been answered, and its commands hold for so long."""
        self._under_way -= 1
        self.sent(ttl_s)

    def run(self) -> bool:
        """Whether the schedulers need the time now: until it has passed the end of all that may hold."""
        if self._until_s is None:
            return self._under_way > 0
        if self._clock() > self._until_s:
            self._until_s = None
        return True


@dataclass(slots=True, kw_only=True)
class PromptCommands:
    """Commands on the prompt of the request they came with, until it has been answered.

    Attributes:
        key: tells them from those of other requests.
        items: all commands that came with it.
        commands: those on its prompt, in order.
        answers: what has become of the latter, from each run of the request; empty until it is over.
    """

    key: str
    items: Sequence[DecodedCommand]
    commands: Sequence[KvCommand]
    answers: list[list[dict[str, Any]]] = field(default_factory=list)

    @property
    def ttl_s(self) -> float:
        """How long one of them may hold, at most."""
        return max(command.ttl_s for command in self.commands)


def on_prompt(front: Front, items: Sequence[DecodedCommand], step: StepFact | None) -> PromptCommands | None:
    """Commands on the prompt of the request they came with, if there are any; they hold from now on, not earlier."""
    own = [_command(front, item, step) for item in items if isinstance(item.command.target, PromptTarget)]
    if not own:
        return None
    front.mail.post()
    return PromptCommands(key=uuid4().hex, items=items, commands=own)


def outcomes(front: Front, admission: Admission) -> list[Outcome]:
    """What has become of a request's commands, as far as is known."""
    task, prompt = admission.commands, admission.prompt
    if task is None or task.cancelled() or (task.done() and task.exception() is not None):
        return []
    if task.done():
        result = list(task.result())
    else:
        result = [_outcome(each, Status.DEFERRED, "not known when the answer was") for each in admission.asked]
    if prompt is not None and prompt.answers:
        places = [place for place, item in enumerate(prompt.items) if isinstance(item.command.target, PromptTarget)]
        for place, answers in zip(places, zip(*prompt.answers, strict=True), strict=True):
            result[place] = _joined(front, prompt.items[place], list(answers))
    return result


async def execute(front: Front, commands: Sequence[DecodedCommand], *, with_request: bool) -> list[Outcome]:
    """Execute commands, those on a prompt excepted; outcomes in the order of the commands, and counted."""
    found: dict[int, Outcome] = {}
    sent: list[int] = []
    for index, item in enumerate(commands):
        if not isinstance(item.command.target, PromptTarget):
            sent.append(index)
        elif with_request:
            found[index] = _outcome(item, Status.DEFERRED, "until the prompt has been computed")
        else:
            found[index] = _outcome(item, Status.REJECTED, "no request carries it: name an agent or a workflow")
    if sent:
        resolved = [_command(front, commands[index], None) for index in sent]
        front.mail.post()
        front.terms.sent(max(command.ttl_s for command in resolved))
        try:
            replicas = await front.questions.ask("commands", commands=[asdict(command) for command in resolved])
        except ServerUnavailableError as error:
            told = f"{error}; it may still be carried out"
            found |= {index: _outcome(commands[index], Status.DEFERRED, told) for index in sent}
        else:
            problem = "; ".join(sorted({answer.error for answer in replicas if answer.error}))
            for place, index in enumerate(sent):
                answers = [answer.data["answers"][place] for answer in replicas if not answer.error]
                if answers:
                    found[index] = _joined(front, commands[index], answers)
                else:
                    found[index] = _outcome(commands[index], Status.UNSUPPORTED, problem)
    result = [found[index] for index in range(len(commands))]
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


def _command(front: Front, item: DecodedCommand, step: StepFact | None) -> KvCommand:
    command, limits = item.command, front.settings.commands
    target = command.target
    ttl_s = min(command.ttl_s or limits.default_ttl_s, limits.max_ttl_s)
    common: dict[str, Any] = {"verb": item.verb, "ttl_s": ttl_s, "priority": command.priority}
    if command.tier is not None:
        common["tier"] = command.tier
    if isinstance(target, PromptTarget):
        common |= {"start_tokens": target.start_tokens, "end_tokens": target.end_tokens}
        if step is None:
            return KvCommand(**common)
        workflow_id, agent = step.workflow_id, step.agent
    else:
        workflow_id, agent = target.workflow_id, target.agent if isinstance(target, AgentTarget) else None
    return KvCommand(**common, tenant=front.plane.tenant_of(workflow_id), workflow_id=workflow_id, agent=agent)


def _outcome(item: DecodedCommand, status: Status, reason: str) -> Outcome:
    return Outcome(action_id=item.action_id, action_type=item.verb, status=status, reason=reason)
