"""Questions that need several texts at once: what one agent hands to another has to be understood in its new place.

A prompt is a role, some texts, and questions. A statement gives a name a digit, or the value of another name, of the
role or of any text before it (``a3;``, ``bA;``); so what a text means depends on what stands before it. Questions ask
for the value of a name (``?b`` is 3), for the sum modulo ten of names of two texts (``+ab``), or to recite a text from
a name on (``!a``). Everything is one token: names, references to them, digits and marks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

DIGITS = list(b"0123456789")
NAMES = list(range(128, 192))
REFERENCES = list(range(192, 256))
"""The reference to a name is the token 64 above it."""
OPEN, CLOSE, END, ASK, ADD, RECITE, FILLER = b"<>;?+!."
ROLE_NAMES = 4
RECITED = 6
KINDS = ("lookup", "chain", "role", "sum", "recite")


@dataclass(frozen=True, slots=True)
class Statement:
    """A name, and the token it is set to."""

    name: int
    source: int
    text: int


@dataclass(frozen=True, slots=True)
class Puzzle:
    """The texts of one program, which agents of every role are asked about."""

    statements: tuple[Statement, ...]
    texts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its answer, in tokens."""

    kind: str
    asked: tuple[int, ...]
    answer: tuple[int, ...]


def make_role(rng: random.Random, most_filler: int = 32) -> list[int]:
    """Write a role: some filler, and values of its names, which are the same in every role."""
    tokens = [FILLER] * rng.randint(0, most_filler)
    for name in rng.sample(NAMES[:ROLE_NAMES], ROLE_NAMES):
        tokens += [name, rng.choice(DIGITS), END]
    return tokens


def make_puzzle(rng: random.Random, texts: int, statements: int) -> Puzzle:
    """Write texts of so many statements each: half literal, a quarter of each kind of reference."""
    names = iter(rng.sample(NAMES[ROLE_NAMES:], texts * statements))
    known: list[Statement] = []
    written: list[tuple[int, ...]] = []
    for text in range(texts):
        tokens = [OPEN]
        for _ in range(statements):
            draw = rng.random()
            if draw < 0.25 and known:
                source = rng.choice(known).name + len(NAMES)
            elif draw < 0.5:
                source = rng.choice(NAMES[:ROLE_NAMES]) + len(NAMES)
            else:
                source = rng.choice(DIGITS)
            known.append(Statement(next(names), source, text))
            tokens += [known[-1].name, source, END]
        written.append((*tokens, CLOSE))
    return Puzzle(tuple(known), tuple(written))


def values(role: list[int], puzzle: Puzzle) -> dict[int, int]:
    """The digit of every name under a role, as a number."""
    known = {name: digit - DIGITS[0] for name, digit in pairwise(role) if name in NAMES}
    for statement in puzzle.statements:
        literal = statement.source in DIGITS
        known[statement.name] = statement.source - DIGITS[0] if literal else known[statement.source - len(NAMES)]
    return known


def ask(rng: random.Random, role: list[int], puzzle: Puzzle, kind: str) -> Question | None:
    """Ask a question of one kind; None if the puzzle has none."""
    known = values(role, puzzle)
    own = NAMES[:ROLE_NAMES]
    fitting = [
        statement
        for statement in puzzle.statements
        if kind in ("sum", "recite")
        or kind == ("lookup" if statement.source in DIGITS else "role" if statement.source - 64 in own else "chain")
    ]
    if not fitting:
        return None
    one = rng.choice(fitting)
    if kind == "sum":
        other = rng.choice([s for s in fitting if s.text != one.text] or fitting)
        total = (known[one.name] + known[other.name]) % 10
        return Question(kind, (ADD, one.name, other.name), (DIGITS[total],))
    if kind == "recite":
        whole = puzzle.texts[one.text]
        at = whole.index(one.name) + 1
        answer = whole[at : at + RECITED]
        return Question(kind, (RECITE, one.name), answer)
    return Question(kind, (ASK, one.name), (DIGITS[known[one.name]],))
