"""How many steps per second programs take whose contexts share a device that is too small for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from kvflow.policy.costs import ServingCosts

_CHOICES = 32
"""How many numbers of programs are compared, about."""
_ALIKE = 0.03
"""Rates that differ by no more are alike: times are estimates."""
_CHEAP = 0.25
"""Loading a context is next to nothing if it takes no more than this share of computing it."""
_LOST = 3.0
"""Of what the host has no room for, so many times as much is lost: contexts are used in turns, and those that are lost
come back and push out the next ones."""
_LEAST_S = 1e-9
"""No step takes less: nothing is known of steps at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionMemory:
    """What there is to hold contexts in.

    Attributes:
        device_tokens: what may be planned with on the device.
        host_tokens: the host tier, which holds copies of what is on the device as well; 0 without one.
    """

    device_tokens: int
    host_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step of a program is like, on average.

    Attributes:
        prompt_tokens: length of its prompt.
        new_tokens: of these, what no earlier step has computed.
        generated_tokens: length of its answer.
        pause_s: until the program's next request, while it keeps its place.
    """

    prompt_tokens: float = 0.0
    new_tokens: float = 0.0
    generated_tokens: float = 0.0
    pause_s: float = 0.0


def best_share(programs: int, tokens: int, memory: AdmissionMemory, step: Step, costs: ServingCosts) -> float:
    """Share of all programs that should run at a time: one with about the most steps per second.

    Of those alike the smallest, since fewer programs at the same rate are done sooner. But where loading takes next to
    nothing the largest whose contexts the host keeps, if there is one: holding more programs back would save nothing.

    Args:
        programs: how many there are.
        tokens: their contexts, all together.
        memory: what there is to hold them in.
        step: what their steps are like.
        costs: what steps take.

    Returns:
        1 if all fit or should run; no less than what fits the device.
    """
    least = memory.device_tokens / max(1, tokens)
    if least >= 1:
        return 1.0
    further = range(programs, floor(least * programs), -max(1, programs // _CHOICES))
    shares = [least, *(number / programs for number in reversed(further))]
    rates = [steps_per_second(share * programs, share * tokens, memory, step, costs) for share in shares]
    enough = (1 - _ALIKE) * max(rates)
    alike = [share for share, rate in zip(shares, rates, strict=True) if rate >= enough]
    if not loads_cheaply(step, costs):
        return min(alike)
    return max((share for share in alike if share * tokens <= memory.host_tokens), default=min(alike))


def loads_cheaply(step: Step, costs: ServingCosts) -> bool:
    """Whether loading a context takes next to nothing of what computing it does."""
    return costs.load_s(step.prompt_tokens) <= _CHEAP * costs.compute_s(0, step.prompt_tokens)


def steps_per_second(programs: float, tokens: float, memory: AdmissionMemory, step: Step, costs: ServingCosts) -> float:
    """Steps that so many programs take in a second.

    In the time in which each takes one step, the server computes what is new in every prompt and what neither tier has
    kept of it, and decodes as many answers together as have room. Loads from the host are made meanwhile, one after the
    other. So the time is that of the server or of the link, whichever takes longer; with few programs it is that of a
    single step with its pause. What a step finds on the device is the share of all contexts that the device holds; what
    it finds on the host, less: it is full of copies of what has been lost since.

    Source: bounds of a closed queueing network by its busiest station and by the time of one customer alone (Denning
    and Buzen, *The Operational Analysis of Queueing Network Models*, 1978, asymptotic bounds).

    Args:
        programs: how many run.
        tokens: their contexts, all together.
        memory: what there is to hold them in.
        step: what their steps are like.
        costs: what steps take.

    Returns:
        Steps per second; 0 if none run.
    """
    missing = max(0.0, 1 - memory.device_tokens / max(1.0, tokens))
    lost = min(missing, _LOST * max(0.0, 1 - memory.host_tokens / max(1.0, tokens)))
    together = min(programs, max(1.0, memory.device_tokens / max(1.0, step.prompt_tokens)))
    rounds = programs / max(_LEAST_S, together)
    decode_s = rounds * costs.decode_s(step.generated_tokens, together, together * step.prompt_tokens)
    known_tokens = step.prompt_tokens - step.new_tokens
    compute_s = costs.compute_s(known_tokens, step.prompt_tokens) + lost * costs.compute_s(0, known_tokens)
    load_s = (missing - lost) * costs.load_s(known_tokens)
    alone_s = compute_s + load_s + decode_s + step.pause_s
    return programs / max(_LEAST_S, alone_s, programs * compute_s + decode_s, programs * load_s)
