"""What is learned of this model and machine while it serves: heard from the schedulers, and told to all ranks alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from kvflow import config

_PREFILL = ("prefill_token_s", "attention_token_s", "prefill_step_s")
_DECODE = ("decode_step_s", "decode_sequence_s", "decode_context_token_s")


def learned_costs(waits: Sequence[Mapping[str, Any]], costs: config.Costs) -> dict[str, float]:
    """Costs by what all replicas have measured, seconds by name; only what has been.

    Args:
        waits: the answers of the schedulers.
        costs: as they were set.
    """
    load_token_s = _mean(waits, "load_token_s")
    learned = {"load_token_s": load_token_s} if load_token_s and costs.learn_loads else {}
    for names, factor in ((_PREFILL, _mean(waits, "prefill_factor")), (_DECODE, _mean(waits, "decode_factor"))):
        if factor is not None:
            learned |= {name: factor * getattr(costs, name) for name in names}
    return learned


def _mean(waits: Iterable[Mapping[str, Any]], name: str) -> float | None:
    values = [each[name] for each in waits if each.get(name) is not None]
    return fmean(values) if values else None
