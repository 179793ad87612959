"""The five commands on cached context: pin, retain, prefetch, demote and release (verbs of SGLang's RFC #27574)."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from kvflow.hints.fields import Identifier, Name, Strict

Verb = Literal["kv.pin", "kv.retain", "kv.prefetch", "kv.demote", "kv.release"]
VERBS: tuple[str, ...] = get_args(Verb)


class PromptTarget(Strict):
    """The prompt of the request that carries the command, or a range of its tokens."""

    kind: Literal["prompt"]
    start_tokens: Annotated[int, Field(ge=0, le=2**31)] = 0
    end_tokens: Annotated[int, Field(gt=0, le=2**31)] | None = None
    """None: to its end."""


class AgentTarget(Strict):
    """What an agent of a live workflow has computed last."""

    kind: Literal["agent"]
    workflow_id: Identifier
    agent: Name


class WorkflowTarget(Strict):
    """What all agents of a live workflow have computed last."""

    kind: Literal["workflow"]
    workflow_id: Identifier


Target = Annotated[PromptTarget | AgentTarget | WorkflowTarget, Field(discriminator="kind")]


class Command(Strict):
    """What is to be done with cached context.

    - ``kv.pin``: evict it last, for ``ttl_s``, from ``tier`` (default ``device``) and from the host.
    - ``kv.retain``: the same for the host tier only: it may leave the device, and is not lost.
    - ``kv.prefetch``: load it back to the device as soon as the link and room allow, within ``ttl_s``.
    - ``kv.demote``: it leaves the device, once the host has a copy, as far as nobody else uses or expects it.
    - ``kv.release``: undo pin, retain and prefetch.
    """

    target: Target
    ttl_s: Annotated[float, Field(gt=0, le=86_400, strict=False)] | None = None
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Among pinned contexts, those of lowest priority leave first."""
    tier: Literal["device", "host"] | None = None
