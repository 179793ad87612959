"""Prompts whose texts mean something else in another place: what agents hand to each other has to be bound.

A prompt is a role, some texts, and a question. A role sets a few names to digits (``a3;``), which are the same names in
every role. A text sets others, to a digit (``b5;``), or to the value of a name of the role (``cA;``) or of a text
before (``dB;``, where b may be set to another's value itself). So what a text says depends on who reads it. Questions
ask for a value (``?d``), for the sum modulo ten of two values of different texts (``+bd``), or to recite a text from a
name on (``!b``). Names, references to them, digits and marks are one token each.

Other prompts have a passage of Python's language reference (``pydoc_data``, PSF licence), one byte a token, as their
text; they ask how it goes on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from zlib import crc32

DIGITS = tuple(b"0123456789")
NAMES = tuple(range(128, 192))
OPEN, CLOSE, END, ASK, ADD, RECITE, FILLER = b"<>;?+!."
ROLE_NAMES = NAMES[:4]
RECITED, PASSAGE, TAIL = 6, 96, 4
PUZZLE_KINDS = ("lookup", "chain", "role", "sum", "recite")
PASSAGE_KINDS = ("next",)
KINDS = PUZZLE_KINDS + PASSAGE_KINDS

Tokens = tuple[int, ...]


def reference(name: int) -> int:
    """The token that stands for a name's value."""
    return name + len(NAMES)


@dataclass(frozen=True, slots=True)
class Statement:
    """A name, what it is set to, and in which text."""

    name: int
    source: int
    text: int

    @property
    def kind(self) -> str:
        """What it takes to know its value."""
        if self.source in DIGITS:
            return "lookup"
        return "role" if self.source - len(NAMES) in ROLE_NAMES else "chain"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its answer.

    Attributes:
        bound: whether a statement asked about refers to another text or the role, by itself or by what it refers to:
            what its own text says, read alone, does not answer it.
    """

    kind: str
    asked: Tokens
    answer: Tokens
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Texts of statements."""

    statements: tuple[Statement, ...]
    texts: tuple[Tokens, ...]

    def ask(self, rng: random.Random, role: Tokens, kind: str) -> Question | None:
        """Ask a question of one kind under a role; None if there is nothing of that kind in the texts."""
        fitting = [s for s in self.statements if s.kind == kind or kind in ("sum", "recite", "first")]
        if not fitting:
            return None
        one = rng.choice(fitting)
        if kind == "first":
            return Question(kind, (ASK, one.name), (one.source,))
        if kind == "recite":
            text = self.texts[one.text]
            at = text.index(one.name) + 1
            return Question(kind, (RECITE, one.name), text[at : at + RECITED])
        if kind == "sum":
            other = rng.choice([s for s in fitting if s.text != one.text] or fitting)
            total = (self.value(one.name, role) + self.value(other.name, role)) % 10
            bound = self.bound(one) or self.bound(other)
            return Question(kind, (ADD, one.name, other.name), (DIGITS[total],), bound)
        return Question(kind, (ASK, one.name), (DIGITS[self.value(one.name, role)],), self.bound(one))

    def bound(self, statement: Statement) -> bool:
        """Whether its value comes from another text than its own, or from the role."""
        text, source = statement.text, statement.source
        while source not in DIGITS:
            found = next((s for s in self.statements if s.name == source - len(NAMES)), None)
            if found is None or found.text != text:
                return True
            source = found.source
        return False

    def value(self, name: int, role: Tokens) -> int:
        """The value of a name under a role."""
        source = next((s.source for s in self.statements if s.name == name), None)
        if source is None:
            source = role[role.index(name) + 1]
        return DIGITS.index(source) if source in DIGITS else self.value(source - len(NAMES), role)


@dataclass(frozen=True, slots=True)
class Passage:
    """One text of prose, and how it goes on."""

    text: Tokens
    following: Tokens

    @property
    def texts(self) -> tuple[Tokens, ...]:
        """The texts of the prompt."""
        return (self.text,)

    def ask(self, rng: random.Random, role: Tokens, kind: str) -> Question:
        """Ask for the byte after a few more."""
        return Question(kind, self.following[:TAIL], self.following[TAIL : TAIL + 1])


def make_role(rng: random.Random, most_filler: int = 32) -> Tokens:
    """Write a role: some filler, and values of its names."""
    tokens = [FILLER] * rng.randint(0, most_filler)
    for name in rng.sample(ROLE_NAMES, len(ROLE_NAMES)):
        tokens += [name, rng.choice(DIGITS), END]
    return tuple(tokens)


def make_puzzle(rng: random.Random, texts: int, statements: int, references: float = 0.5) -> Puzzle:
    """Write texts of so many statements each; a share of them are references, of both kinds alike."""
    names = iter(rng.sample(NAMES[len(ROLE_NAMES) :], texts * statements))
    known: list[Statement] = []
    written: list[Tokens] = []
    for text in range(texts):
        tokens = [OPEN]
        for _ in range(statements):
            known.append(Statement(next(names), _source(rng, known, references), text))
            tokens += [known[-1].name, known[-1].source, END]
        written.append((*tokens, CLOSE))
    return Puzzle(tuple(known), tuple(written))


def _source(rng: random.Random, known: Sequence[Statement], references: float) -> int:
    near = [statement.name for statement in known if statement.kind != "chain"]
    draw = rng.random() / references
    if draw < 0.5 and near:
        return reference(rng.choice(near))
    return reference(rng.choice(ROLE_NAMES)) if draw < 1 else rng.choice(DIGITS)


class Library:
    """Passages to train with, or others to be tested with."""

    def __init__(self, *, held_out: bool) -> None:
        chosen = [text for name, text in sorted(topics.items()) if (crc32(name.encode()) % 8 == 0) == held_out]
        self._text = " ".join("\n".join(chosen).encode("ascii", "ignore").decode().split()).encode()

    def passage(self, rng: random.Random) -> Passage:
        """Open it somewhere."""
        at = rng.randrange(len(self._text) - 2 * PASSAGE)
        text = tuple(self._text[at : at + 2 * PASSAGE])
        return Passage(text[:PASSAGE], text[PASSAGE:])
