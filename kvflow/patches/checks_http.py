"""Checks of the quality gate in the HTTP process: copies of prompts, asked when their askers have been answered."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import uuid4

from kvflow.errors import ServerUnavailableError
from kvflow.hints import envelope
from kvflow.patches import claim
from kvflow.patches.guard import note
from kvflow.patches.questions import Questions

logger = logging.getLogger(__name__)

_DELAY_S = 0.05
"""For the end of an answer to reach the schedulers, and for others that end at the same time."""
_PATIENCE_S = 0.5
"""How long a copy waits for a moment in which nobody else's request would wait for it."""


class Checker:
    """Asks what the schedulers want to have asked, one at a time, and while nothing else is under way if it may be.

    Args:
        questions: the way to the schedulers.
        tokenizer_manager: SGLang's.
    """

    def __init__(self, questions: Questions, tokenizer_manager: Any) -> None:
        self._questions = questions
        self._tokenizer_manager = tokenizer_manager
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def soon(self) -> None:
        """A request with reuse has been answered: there may be something to check."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._again:
                await asyncio.sleep(_DELAY_S)
                self._again = False
                for answer in await self._questions.ask("checks"):
                    for offer in answer.data.get("due", ()):
                        await self._quiet()
                        await self._tried(offer, answer.data.get("replica"))
        except ServerUnavailableError:
            pass  # too busy; what is due is asked after the next answer
        except Exception:
            note("checks of reuse")

    async def _quiet(self) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while getattr(self._tokenizer_manager, "rid_to_state", ()) and time.monotonic() < deadline_s:
            await asyncio.sleep(_DELAY_S)

    async def _tried(self, offer: dict[str, Any], replica: int | None) -> None:
        """Ask one; should the server refuse it, as when its queue is full, the others are asked all the same."""
        try:
            await self._ask(offer, replica)
        except Exception as error:
            logger.debug("a check of reuse was not answered: %s", error)

    async def _ask(self, offer: dict[str, Any], replica: int | None) -> None:
        from sglang.srt.managers.io_struct import GenerateReqInput

        request = GenerateReqInput(
            input_ids=offer["input_ids"],
            sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
            rid=f"kvflow-check-{uuid4().hex}",
            extra_key=offer["extra_key"],
            cache_salt=offer["cache_salt"],
            kv_hints=claim.attach(envelope(()), None, reuse=offer["asked"]),
            routed_dp_rank=replica,
        )
        request._kvflow_own = True  # type: ignore[attr-defined]  # its hints are for the schedulers as they are
        async for _ in self._tokenizer_manager.generate_request(request, None):
            pass
