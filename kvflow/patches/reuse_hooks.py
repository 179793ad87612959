"""Where reuse hooks into SGLang: a scheduler's start, a forward pass, and sampling."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvflow import config
from kvflow.errors import ReuseUnsupportedError
from kvflow.patches import switch
from kvflow.patches.seams import Feature, Role
from kvflow.patches.splicer import Splicer

logger = logging.getLogger(__name__)


def start(scheduler: Any) -> str:
    """Give a scheduler its splicer, if reuse is asked for; returns why it has none.

    Raises:
        Exception: it is asked for and not possible, and ``KVFLOW_STRICT`` is set.
    """
    settings = config.load()
    cache = scheduler.tree_cache
    if settings.reuse.mode == "off":
        return "reuse.mode is off"
    if not hasattr(cache, "splicer") or not switch.books[Role.SCHEDULER].holds(Feature.REUSE):
        return "a seam it needs does not hold"
    try:
        splicer = Splicer(scheduler, settings)
    except Exception as error:  # of kernels that cannot be compiled, say: the server can do without
        if settings.strict:
            raise
        known = isinstance(error, ReuseUnsupportedError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        logger.error("kvflow: reuse is off: %s", reason, exc_info=not known)
        return reason
    cache.splicer = scheduler.tp_worker._kvflow_splicer = scheduler.tp_worker.model_runner._kvflow_splicer = splicer
    return ""


def forward(original: Callable[..., Any], self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Splice the prompts of a batch (hook around ``TpModelWorker.forward_batch_generation``)."""
    splicer: Splicer | None = getattr(self, "_kvflow_splicer", None)
    if splicer is None:
        return original(self, batch, *args, **kwargs)
    return splicer.forward(original, self, batch, *args, **kwargs)


def before_sampling(self: Any, logits_output: Any, *args: Any, **kwargs: Any) -> None:
    """See logits before they are sampled from (hook before ``ModelRunner.sample``)."""
    splicer: Splicer | None = getattr(self, "_kvflow_splicer", None)
    if splicer is not None and splicer.samples:
        splicer.before_sampling(logits_output.next_token_logits)
