"""What both bodies of the contract test are put through, and what they write down of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvflow.engine import PromptClaim
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from kvflow.trace import Piece

PAGE = 16
DEVICE_TOKENS = 96 * PAGE
CONTENT_TOKENS = 1 << 16
PIECES_AT_ONCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A prompt to answer. The answer is a content of its own, so that a later prompt can go on from it."""

    number: int
    claim: PromptClaim
    pieces: tuple[Piece, ...]
    answer: Piece

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a prompt asked for earlier is complete."""

    number: int


Operation = Ask | Answer | WorkflowUpdate | float
"""What happens next; a number is the time."""


class Scenario:
    """Seeded programs of several agents.

    Args:
        at_once: requests that run at a time.
        answer_tokens: length of every answer; None for different ones.
    """

    TYPES = ("review", "research")
    AGENTS = ("planner", "coder", "critic")

    def __init__(self, seed: int, *, at_once: int = 1, answer_tokens: int | None = None) -> None:
        self._random = random.Random(seed)
        self._at_once = at_once
        self._answer_tokens = answer_tokens
        self._contents = 0
        self._numbers = 0
        self._fixed = {
            (kind, agent): Piece(f"{kind}/{agent}", self._random.randrange(20, 150))
            for kind in self.TYPES
            for agent in self.AGENTS
        }
        self._live: dict[str, dict[str, list[Piece]]] = {}
        self._started = 0

    def play(self, count: int) -> Iterator[Operation]:
        """Give so many operations, and then the answers that are still missing."""
        running: list[int] = []
        now_s = 0.0
        for _ in range(count):
            now_s += self._random.random()
            chance = self._random.random()
            if len(running) >= self._at_once or (running and chance < 0.3):
                yield Answer(running.pop(self._random.randrange(len(running))))
            elif chance < 0.45 or len(self._live) < 3:
                yield now_s
                yield self._predict()
            elif chance < 0.50:
                yield self._end()
            else:
                ask = self._ask()
                running.append(ask.number)
                yield ask
        for number in running:
            yield Answer(number)

    def _predict(self) -> WorkflowUpdate:
        if len(self._live) < 5 and (len(self._live) < 3 or self._random.random() < 0.3):
            self._started += 1
            self._live[f"{self._random.choice(self.TYPES)}:{self._started}"] = {}
        workflow = self._random.choice(list(self._live))
        claims = tuple(
            ClaimPrediction(
                agent=agent,
                steps=float(self._random.randrange(0, 6)),
                pinned=self._random.random() < 0.2,
                probability=self._random.choice((0.25, 0.5, 1.0)),
                due_s=self._random.choice((None, 3.0, 30.0, 300.0)),
            )
            for agent in self.AGENTS
            if self._random.random() < 0.8
        )
        return WorkflowUpdate(workflow_id=workflow, workflow_type=workflow.split(":")[0], claims=claims)

    def _end(self) -> WorkflowUpdate:
        workflow = self._random.choice(list(self._live))
        del self._live[workflow]
        return WorkflowUpdate(workflow_id=workflow, workflow_type=workflow.split(":")[0], retired=True)

    def _ask(self) -> Ask:
        workflow = self._random.choice(list(self._live))
        kind, contexts = workflow.split(":")[0], self._live[workflow]
        agent = self._random.choice(self.AGENTS)
        fixed = self._fixed[kind, agent]
        known = contexts.get(agent)
        chance = self._random.random()
        if known is None or chance < 0.2:  # from the start: what was there is superseded
            before = [fixed]
        elif chance < 0.4:  # go on from somewhere within
            before = _first(known, self._random.randrange(1, sum(piece.tokens for piece in known) + 1))
        elif chance < 0.5:  # continue what another agent of the workflow has
            before = list(self._random.choice(list(contexts.values())))
        else:
            before = list(known)
        added = [self._new(self._random.randrange(1, 120)) for _ in range(self._random.randrange(0, PIECES_AT_ONCE))]
        pieces = [*before, *added]
        if sum(piece.tokens for piece in pieces) > DEVICE_TOKENS // 4:
            pieces = [fixed, self._new(40)]
        answer = self._new(self._answer_tokens or self._random.randrange(2, 60))
        contexts[agent] = [*pieces, answer]
        self._numbers += 1
        declared = fixed.tokens if self._random.random() < 0.8 else 0
        claim = PromptClaim(workflow_id=workflow, workflow_type=kind, agent=agent, fixed_tokens=declared)
        return Ask(number=self._numbers, claim=claim, pieces=tuple(pieces), answer=answer)

    def _new(self, tokens: int) -> Piece:
        self._contents += 1
        return Piece(f"new/{self._contents}", tokens)


def _first(pieces: Sequence[Piece], tokens: int) -> list[Piece]:
    kept = []
    for piece in pieces:
        take = min(piece.tokens, tokens)
        if take:
            kept.append(Piece(piece.content, take, piece.offset))
        tokens -= take
    return kept


@dataclass(slots=True)
class Log:
    """What a cache did, in the order in which it did it.

    Attributes:
        lost: (tier, position of the node's end, its tokens).
        found: (request, tokens on the device, tokens on the host).
        loaded: tokens of every load-back.
        kept: (tokens in use on the device, tokens on the host) after every operation.
    """

    lost: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)
    found: list[tuple[int, int, int]] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)


class Spelling:
    """Spells contents out as token ids: equal contents are equal tokens, different ones share none."""

    def __init__(self) -> None:
        self._starts: dict[str, int] = {}

    def tokens(self, pieces: Sequence[Piece]) -> list[int]:
        spelled: list[int] = []
        for piece in pieces:
            start = self._starts.setdefault(piece.content, len(self._starts) * CONTENT_TOKENS) + piece.offset
            spelled.extend(range(start, start + piece.tokens))
        return spelled
