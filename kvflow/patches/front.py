"""The HTTP process's end: the control plane, and the way from it to the schedulers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sglang.utils import TypeBasedDispatcher

from kvflow import config
from kvflow.control import Context, ControlPlane, Intake, Quotes, starts_step
from kvflow.engine import PromptClaim
from kvflow.errors import HintDecodeError
from kvflow.hints import DecodedCommand, DecodedFact, DecodedSegments, Outcome, Status, StepFact, decode_envelope
from kvflow.hints import envelope as new_envelope
from kvflow.hints.models import SEGMENTS_TYPE, STEP_TYPE
from kvflow.patches import claim, commands_http, malformed
from kvflow.patches.checks_http import Checker
from kvflow.patches.guard import note
from kvflow.patches.locating import find_slots
from kvflow.patches.mail import Mail
from kvflow.patches.messages import KvflowCommanded
from kvflow.patches.questions import Questions
from kvflow.patches.timers import start_timers
from kvflow.reuse.fingerprints import marks_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What travels on with a request.

    Attributes:
        envelope: its hints with the claim in place; None if they were malformed and we are lenient.
        step: the step it belongs to, if any.
        context: its agent's in that workflow, which it is in flight for.
        asked: the commands it carries.
        commands: what becomes of them.
        prompt: those on its prompt, if there are any.
        reuses: whether it asks for reuse.
    """

    envelope: dict[str, Any] | None = None
    step: StepFact | None = None
    context: Context | None = None
    asked: Sequence[DecodedCommand] = ()
    commands: asyncio.Task[list[Outcome]] | None = None
    prompt: commands_http.PromptCommands | None = None
    reuses: bool = False


class Front:
    """Facts in, predictions out. Everything happens on the event loop of SGLang's tokenizer manager.

    Args:
        tokenizer_manager: SGLang's, which owns the socket to the schedulers.
    """

    _clock = staticmethod(time.monotonic)

    def __init__(self, tokenizer_manager: Any) -> None:
        self.settings = config.load()
        self.plane = ControlPlane(self.settings, self._clock, Quotes(marks_of) if self.settings.intake.infer else None)
        self.mail = Mail(tokenizer_manager, self._clock)
        self.tokenizer_manager = tokenizer_manager
        self.questions = Questions(tokenizer_manager)
        self._checker = Checker(self.questions, tokenizer_manager)
        self.terms = commands_http.Terms(self._clock)
        self._timers: list[asyncio.Task[None]] = []
        self._prompts: dict[str, commands_http.PromptCommands] = {}
        tokenizer_manager._result_dispatcher += TypeBasedDispatcher([(KvflowCommanded, self.commanded)])

    @property
    def streams_deltas(self) -> bool:
        """Whether parts of an answer that is streamed bring only what is new."""
        return self.tokenizer_manager.incremental_streaming_output

    @property
    def now_s(self) -> float:
        """The time, as the schedulers are told it."""
        return self._clock()

    @classmethod
    def of(cls, tokenizer_manager: Any) -> Front:
        """Find the front of a tokenizer manager, or start it."""
        front = getattr(tokenizer_manager, "_kvflow_front", None)
        if front is None:
            front = tokenizer_manager._kvflow_front = cls(tokenizer_manager)
        return front

    def admit(self, envelope: Any, text: str | None = None) -> Admission:
        """Take the facts of one request, and post what they change ahead of it.

        Args:
            envelope: its hints.
            text: its prompt, if it came as one text.

        Raises:
            HintDecodeError: the hints are malformed and ``intake.strict`` is set.
        """
        envelope = msgspec.to_builtins(envelope)
        try:
            decoded = decode_envelope(envelope)
        except HintDecodeError as error:
            malformed.note()
            if self.settings.intake.strict:
                raise
            logger.debug("request runs without its hints: %s", error)
            return Admission()
        self.plane.count(decoded.outcomes)
        reuse = self._reuse(decoded.segments, text) if decoded.segments is not None else None
        intake = self._take(decoded.facts, with_request=True)
        step = _own_step(decoded.facts, intake.outcomes)
        if step is None and any(starts_step(item.fact) for item in decoded.facts):
            reuse = None  # whose texts these are was said, and refused
        try:
            return self._admission(envelope, decoded.commands, step, _context(intake), reuse)
        except Exception:
            if step is not None:
                self.plane.answered(step.workflow_id, step.agent, _context(intake))  # nobody else will say so
            raise

    def _admission(
        self,
        envelope: dict[str, Any],
        asked: Sequence[DecodedCommand],
        step: StepFact | None,
        context: Context | None,
        reuse: dict[str, Any] | None,
    ) -> Admission:
        """What travels on with a request whose facts have been taken."""
        prompt = commands_http.on_prompt(self, asked, step)
        commands = None
        if asked:
            commands = asyncio.create_task(commands_http.execute(self, asked, with_request=True))
        own, key = (prompt.commands, prompt.key) if prompt is not None else ((), "")
        carried = claim.attach(envelope, step and self._claim(step), own, reuse, key=key)
        if prompt is not None:
            self._prompts[prompt.key] = prompt
            self.terms.begin()
        return Admission(
            envelope=carried,
            step=step,
            context=context,
            asked=asked,
            commands=commands,
            prompt=prompt,
            reuses=reuse is not None,
        )

    def infer(self, prompt: Sequence[int], namespace: str, kind: str, marks: Sequence[str], gram: int) -> Admission:
        """Take a request that says nothing of itself, see :meth:`~kvflow.control.threads.Threads.asks`."""
        step = self.plane.threads.asks(prompt, namespace, kind, marks, gram)
        if step is None:
            return Admission()
        try:
            intake = self._take((DecodedFact(action_id="", action_type=STEP_TYPE, fact=step),), with_request=True)
            carried = claim.attach(new_envelope([]), self._claim(step))
            return Admission(envelope=carried, step=step, context=_context(intake))
        except Exception:
            self.plane.threads.answered(step.workflow_id, step.agent)  # nobody else will say so
            raise

    def answered(self, admission: Admission, said: Sequence[int] = (), *, complete: bool, heard: bool) -> None:
        """A request has been answered, or given up; to be called once for each that was admitted.

        Args:
            admission: whose.
            said: the answer to one that says nothing of itself, in tokens or bytes as its prompt.
            complete: all of its answer has been passed on: it was not given up.
            heard: at least a part of it has.
        """
        if admission.reuses:
            self._checker.soon()
        if admission.prompt is not None:
            self._prompts.pop(admission.prompt.key, None)
            self.terms.end(admission.prompt.ttl_s)
        step = admission.step
        if step is None:
            return
        try:
            lives = self.plane.answered(step.workflow_id, step.agent, admission.context, given_up=not heard)
            if lives and complete and step.final and step.step_id is None:  # a named step says itself when it ends
                updates = self.plane.finish(step.workflow_id)
                if updates:
                    self.mail.post(updates)
            if said:
                self.plane.threads.said(step.workflow_id, step.agent, said)
        except Exception:
            note("taking answers")

    async def hints(self, envelope: Any) -> list[Outcome]:
        """Take facts, then commands, that come without a request.

        Raises:
            HintDecodeError: the envelope is malformed.
        """
        try:
            decoded = decode_envelope(envelope)
        except HintDecodeError:
            malformed.note()
            raise
        self.plane.count(decoded.outcomes)
        outcomes = self._take(decoded.facts).outcomes
        outcomes += await commands_http.execute(self, decoded.commands, with_request=False)
        if decoded.segments is not None:
            alone = _outcome_of(decoded.segments, Status.REJECTED, "no request carries it")
            self.plane.count([alone])
            outcomes.append(alone)
        return [*outcomes, *decoded.outcomes]

    def commanded(self, message: KvflowCommanded) -> None:
        """Take what has become of the commands on a request's prompt, unless nobody waits for it any more."""
        prompt = self._prompts.get(message.key)
        if prompt is not None:
            prompt.answers.append(message.answers)

    def _take(self, facts: tuple[DecodedFact, ...], *, with_request: bool = False) -> Intake:
        intake = self.plane.take(facts, with_request=with_request)
        if intake.updates or intake.feedback:
            self.mail.post(intake.updates, feedback=intake.feedback)
        if not self._timers:
            self._timers = start_timers(self)
        return intake

    def _reuse(self, item: DecodedSegments, text: str | None) -> dict[str, Any] | None:
        """What the schedulers are to reuse in a request's prompt."""
        tokenizer = self.tokenizer_manager.tokenizer
        status, reason, reuse = Status.ACCEPTED, "", None
        if self.settings.reuse.mode == "off":
            status, reason = Status.UNSUPPORTED, "reuse.mode is off"
        elif item.segments.mode != "off":
            prompt = text or ""
            slots = find_slots(item.segments, lambda: tokenizer(prompt)["input_ids"], tokenizer, text=prompt)
            reuse = {"slots": slots, "mode": item.segments.mode}
            if not slots and (item.segments.ranges or item.segments.messages):
                status, reason = Status.MISSING, "none of its texts were found in the prompt"
        self.plane.count([_outcome_of(item, status, reason)])
        return reuse

    def _claim(self, step: StepFact) -> PromptClaim:
        """Whose prompt a request carries; its fixed part as the request says, or else as the graph does."""
        fixed_tokens = step.fixed_prompt_tokens
        workflow_type = self.plane.type_of(step.workflow_id) or step.workflow_type
        known = self.plane.graphs.find(workflow_type) if fixed_tokens is None else None
        if known is not None and step.agent in known.graph:
            fixed_tokens = known.graph.fixed_prompt_tokens(step.agent)
        return PromptClaim(
            workflow_id=step.workflow_id,
            workflow_type=workflow_type,
            agent=step.agent,
            fixed_tokens=fixed_tokens,
            program_id=self.plane.program_of(step.workflow_id),
            tenant=self.plane.tenant_of(step.workflow_id),
        )


def _outcome_of(item: DecodedSegments, status: Status, reason: str) -> Outcome:
    return Outcome(action_id=item.action_id, action_type=SEGMENTS_TYPE, status=status, reason=reason)


def _context(intake: Intake) -> Context | None:
    """What the request that facts came with is in flight for, if it is a step's."""
    return intake.asked[0] if intake.asked else None


def _own_step(facts: tuple[DecodedFact, ...], outcomes: list[Outcome]) -> StepFact | None:
    """The step a request belongs to: the last one its facts start, if it was accepted."""
    for item, outcome in zip(reversed(facts), reversed(outcomes), strict=True):
        if starts_step(item.fact):
            return item.fact if outcome.status is Status.ACCEPTED else None
    return None
