"""Roles: agents of workflow types, what their prompts begin with, and what became of what they left behind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvflow.engine.clock import Clock
from kvflow.engine.lost import cached_part
from kvflow.engine.ports import Node

if TYPE_CHECKING:
    from kvflow.engine.claim import Claim

_MIN_WASTED = 4
_TAIL_MEMORY = 64
_TAIL_PRIOR = 2
_END_MEMORY_TOKENS = 1 << 20
_MAX_PROMPTS = 64


@dataclass(slots=True, eq=False)
class FixedPrompt:
    """What prompts of a role begin with, whoever's they are.

    Attributes:
        tokens: its length.
        tip: its deepest node, as of the last time it ran.
    """

    tokens: int = 0
    tip: Node | None = None

    def parts(self, cached: Callable[[Node], bool]) -> dict[Hashable, int]:
        """Divide its length among the nodes that hold it, which prompts that begin alike have in common.

        What is in no node, as far as is known, is a part of its own. Cost: O(nodes).

        Args:
            cached: whether a node is in the cache at all.
        """
        parts: dict[Hashable, int] = {}
        node: Any = cached_part(self.tip, cached)[0]
        while node is not None and node.parent is not None:
            parts[node] = len(node.key)
            node = node.parent
        left_tokens = self.tokens - sum(parts.values())
        return parts | {self: left_tokens} if left_tokens > 0 else parts


@dataclass(slots=True, eq=False)
class Role:
    """An agent of a workflow type; workflows of the type share what its prompts begin with.

    Attributes:
        stamp: counts the role's prompts.
        tails_reused: dynamic tails that a later prompt extended.
        tails_wasted: dynamic tails that none did.
        tails_replaced: of these, those after which a prompt came, and began otherwise.
        ended_tokens: length of the dynamic tails that ended workflows left.
        revived_tokens: what later workflows found of those.
        claims: live claims that expect to run the agent.
        prompt: what the latest of its prompts began with.
        prompts: all of what its prompts begin with, by digest; the 64 used last.
    """

    agent: str
    stamp: int = 0
    tails_reused: int = 0
    tails_wasted: int = 0
    tails_replaced: int = 0
    ended_tokens: int = 0
    revived_tokens: int = 0
    claims: dict[Claim, None] = field(default_factory=dict)
    prompt: FixedPrompt = field(default_factory=FixedPrompt)
    prompts: OrderedDict[int | None, FixedPrompt] = field(default_factory=OrderedDict)
    _version: int = -1
    _steps: float | None = None
    _rate_hz: float = 0.0
    _next_s: float | None = None

    def prompt_of(self, digest: int | None, tokens: int = 0) -> FixedPrompt:
        """Find the fixed prompt with a digest, None for the one not told apart, or start it with a length."""
        prompt = self.prompts.get(digest)
        if prompt is None:
            if len(self.prompts) >= _MAX_PROMPTS:
                self.prompts.popitem(last=False)
            prompt = self.prompts[digest] = FixedPrompt(tokens)
        self.prompts.move_to_end(digest)
        return prompt

    def ends_tokens(self) -> Iterator[int]:
        """Positions from which prompts of other workflows may go on: where its fixed prompts end."""
        yield self.prompt.tokens
        for prompt in self.prompts.values():
            yield prompt.tokens

    def forget_nodes(self) -> None:
        """Nothing of it is in the cache any more."""
        for prompt in (self.prompt, *self.prompts.values()):
            prompt.tip = None

    @property
    def steps(self) -> float | None:
        """Least steps-to-execution over all live workflows of the type; None when none expects to run the agent."""
        return min((claim.steps for claim in self.claims if claim.steps is not None), default=None)

    @property
    def reuses_tails(self) -> bool:
        """Whether tails of this agent are worth keeping once its step is over: yes, until most proved not to be."""
        return self.tails_wasted < _MIN_WASTED or 4 * self.tails_reused >= self.tails_wasted

    @property
    def tail_probability(self) -> float:
        """Probability that the agent's next prompt, if one comes, extends its latest tail."""
        return (self.tails_reused + _TAIL_PRIOR) / (self.tails_reused + self.tails_replaced + _TAIL_PRIOR)

    def settle_tail(self, *, reused: bool, last: bool = False) -> None:
        """Add to the experience with this agent's tails; older experience fades.

        Args:
            reused: a later prompt has extended it.
            last: no prompt of its workflow came any more.
        """
        if self.tails_reused + self.tails_wasted >= _TAIL_MEMORY:
            self.tails_reused //= 2
            self.tails_wasted //= 2
            self.tails_replaced //= 2
        self.tails_reused += reused
        self.tails_wasted += not reused
        self.tails_replaced += not (reused or last)

    @property
    def ends_for_good(self) -> bool:
        """Whether what an ended workflow leaves is of no use to others: yes, until much of it proved to be."""
        return 4 * self.revived_tokens < self.ended_tokens or not self.revived_tokens

    def settle_end(self, *, tokens: int = 0, revived_tokens: int = 0) -> None:
        """Add to the experience with what ended workflows leave; older experience fades."""
        if max(self.ended_tokens + tokens, self.revived_tokens + revived_tokens) > _END_MEMORY_TOKENS:
            self.ended_tokens //= 2
            self.revived_tokens //= 2
        self.ended_tokens += tokens
        self.revived_tokens += revived_tokens

    def outlook(self, clock: Clock) -> tuple[float | None, float, float | None]:
        """Least steps, uses per second and least seconds to next use, over all live workflows of the type.

        Cost: O(claims) when something has changed since the last call, else O(1).
        """
        if self._version != clock.version:
            self._version = clock.version
            self._steps = self.steps
            outlooks = [outlook for claim in self.claims if (outlook := claim.outlook(clock)) is not None]
            self._rate_hz = sum(likelihood / next_s for likelihood, next_s in outlooks)
            self._next_s = min((next_s for _, next_s in outlooks), default=None)
        return self._steps, self._rate_hz, self._next_s
