"""The HTTP process's end: the control plane, and the way from it to the schedulers."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import uuid4

import msgspec

from kvflow import config
from kvflow.control import ControlPlane
from kvflow.engine import PromptClaim
from kvflow.errors import HintDecodeError, ServerUnavailableError
from kvflow.hints import DecodedFact, Outcome, StepFact, decode_envelope
from kvflow.patches import claim
from kvflow.patches.messages import KvflowAnswer, KvflowQuery, KvflowUpdates
from kvflow.predict import WorkflowUpdate

logger = logging.getLogger(__name__)

_EXPIRY_PERIOD_S = 0.25
_ANSWER_TIMEOUT_S = 10.0


class Front:
    """Facts in, predictions out. Everything happens on the event loop of SGLang's tokenizer manager.

    Args:
        tokenizer_manager: SGLang's, which owns the socket to the schedulers.
    """

    def __init__(self, tokenizer_manager: Any) -> None:
        self.settings = config.load()
        self.plane = ControlPlane(self.settings, time.monotonic)
        self.malformed = 0
        self._tokenizer_manager = tokenizer_manager
        self._timer: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, tokenizer_manager: Any) -> Front:
        """Find the front of a tokenizer manager, or start it."""
        front = getattr(tokenizer_manager, "_kvflow_front", None)
        if front is None:
            front = tokenizer_manager._kvflow_front = cls(tokenizer_manager)
        return front

    def admit(self, envelope: Any) -> dict[str, Any] | None:
        """Take the facts of one request and send what they change ahead of it.

        Returns:
            the envelope that travels on with the request, or None if its hints were malformed and we are lenient.

        Raises:
            HintDecodeError: the hints are malformed and ``intake.strict`` is set.
        """
        envelope = msgspec.to_builtins(envelope)
        try:
            decoded = decode_envelope(envelope)
        except HintDecodeError as error:
            self.malformed += 1
            if self.settings.intake.strict:
                raise
            logger.debug("request runs without its hints: %s", error)
            return None
        self.plane.count(decoded.outcomes)
        self._take(decoded.facts)
        return claim.attach(envelope, _prompt_claim(decoded.facts))

    def events(self, envelope: Any) -> list[Outcome]:
        """Take facts that come without a request.

        Raises:
            HintDecodeError: the envelope is malformed.
        """
        try:
            decoded = decode_envelope(envelope)
        except HintDecodeError:
            self.malformed += 1
            raise
        self.plane.count(decoded.outcomes)
        return [*self._take(decoded.facts), *decoded.outcomes]

    async def ask(self, op: str, **arguments: Any) -> list[KvflowAnswer]:
        """Put a question to every data-parallel replica.

        Raises:
            ServerUnavailableError: not every scheduler answered in time.
        """
        self._tokenizer_manager.auto_create_handle_loop()
        query = KvflowQuery(op=op, query_id=uuid4().hex, arguments=arguments)
        for _ in range(2):  # a late answer to an abandoned question can take the place of ours once
            try:
                call = self._tokenizer_manager.kvflow_communicator(query)
                answers = await asyncio.wait_for(call, _ANSWER_TIMEOUT_S)
            except TimeoutError:
                continue
            if all(answer.query_id == query.query_id for answer in answers):
                return answers
        raise ServerUnavailableError(f"the schedulers did not answer {op!r} within {_ANSWER_TIMEOUT_S:g} s")

    def send(self, updates: list[WorkflowUpdate]) -> None:
        """Send predictions to every rank of every replica, ahead of later requests."""
        if updates:
            self._tokenizer_manager._dispatch_to_scheduler(KvflowUpdates(updates=[u.to_wire() for u in updates]))

    def _take(self, facts: tuple[DecodedFact, ...]) -> list[Outcome]:
        intake = self.plane.take(facts)
        self.send(intake.updates)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().create_task(self._expire())
        return intake.outcomes

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_PERIOD_S)
            try:
                self.send(self.plane.expire())
            except Exception:
                logger.exception("kvflow: expiry failed; trying again")


def _prompt_claim(facts: tuple[DecodedFact, ...]) -> PromptClaim | None:
    """Whose prompt a request carries: the last step its facts start."""
    for item in reversed(facts):
        fact = item.fact
        if isinstance(fact, StepFact) and fact.event == "start":
            return PromptClaim(
                workflow_id=fact.workflow_id,
                workflow_type=fact.workflow_type,
                agent=fact.agent,
                fixed_tokens=fact.fixed_prompt_tokens,
                final=fact.final,
            )
    return None
