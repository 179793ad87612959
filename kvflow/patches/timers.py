"""What the HTTP process does by itself from time to time, while it has workflows."""

from __future__ import annotations

import asyncio
import logging
from statistics import fmean
from typing import TYPE_CHECKING

from kvflow.errors import ServerUnavailableError
from kvflow.patches import health
from kvflow.patches.guard import note
from kvflow.patches.learning import learned_costs

if TYPE_CHECKING:
    from kvflow.patches.front import Front

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_LISTEN_S = 2.0


def start_timers(front: Front) -> list[asyncio.Task[None]]:
    """Start them on the running event loop; they run until they are cancelled."""
    return [asyncio.create_task(job) for job in (_keep_time(front), _listen(front))]


async def _keep_time(front: Front) -> None:
    """Let things expire, and tell the schedulers the time while there are workflows, or commands that may hold."""
    while True:
        await asyncio.sleep(_TICK_S)
        try:
            updates = front.plane.expire()
            if front.terms.run() or updates or len(front.plane):
                front.mail.post(updates)
        except Exception:
            note("expiry")


async def _listen(front: Front) -> None:
    """Hear from the schedulers how long requests, loads and batches take, and tell all ranks alike."""
    while True:
        await asyncio.sleep(_LISTEN_S)
        try:
            if not len(front.plane) or health.check_under_way(front.tokenizer_manager):
                continue  # an answer to us must not pass for one to a health check
            waits = [answer.data for answer in await front.questions.ask("waits") if not answer.error]
            if waits:
                front.plane.forecaster.queue_s = fmean(each["queue_s"] for each in waits)
            loads_s = [each["reload_s"] for each in waits if each["reload_s"] is not None]
            if loads_s:
                front.plane.forecaster.reload_s = fmean(loads_s)
            if costs := learned_costs(waits, front.settings.costs):
                front.mail.post(costs=costs)
        except ServerUnavailableError:
            logger.debug("the schedulers are too busy to say how long requests wait")
        except Exception:
            note("learning waits")
