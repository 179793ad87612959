"""One request to the simulated server."""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from kvflow.engine import LoadRetry, PromptClaim
from kvflow.sim.context import Context
from kvflow.sim.tree import Node


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A prompt to be answered.

    Attributes:
        claim: whose prompt it is.
        prompt: its context.
        whole: the context with the answer.
        output_tokens: length of the answer.
        near: deepest node known to be on its path, from an earlier request of its program.
        done: succeeds with the answer.
        node: deepest node of its own in the tree, locked.
        computed: tokens of the prompt (and of the answer, after a retraction) that are on the device.
        generated: tokens generated until it was last retracted.
        fixed_tokens: length of its fixed part, once that is known.
        started_step: decode step at which it joined the batch.
        joined: how many had joined before it, to tell its turns in the batch apart.
        retry: of having its context loaded in the background.
        brought_tokens: what of those on the device was loaded while it waited.
        again: it was retracted, and has not been entered since.
        watched: the guard has seen it start, since it was last retracted.
    """

    claim: PromptClaim
    prompt: Context
    whole: Context
    output_tokens: int
    near: Node | None
    arrived_s: float
    done: simpy.Event
    node: Node | None = None
    computed: int = 0
    generated: int = 0
    started_step: int = 0
    joined: int = 0
    load_until_s: float = 0.0
    fixed_tokens: int | None = None
    counted: bool = False
    tagged: bool = False
    again: bool = False
    retry: LoadRetry = field(default_factory=LoadRetry)
    watched: bool = False
    brought_tokens: int = 0
    admitted_s: float | None = None
    first_token_s: float | None = None
    hits: dict[str, int] = field(default_factory=dict)

    @property
    def found(self) -> int:
        """Tokens of its prompt that were in the cache when it was admitted first."""
        return sum(self.hits.values())

    @property
    def goal(self) -> int:
        """Tokens to be computed before it can generate: the prompt, and what it had generated before a retraction."""
        return self.prompt.tokens + self.generated
