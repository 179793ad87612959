"""Questions that need several texts at once: what one agent hands to another has to be understood in its new place.

A prompt is a role, some texts, and questions. A role defines constants (``@=7;``), texts define variables by a digit, by
an earlier variable or by a constant of the role (``a=3;b=a;c=@;``), so what a text means depends on what stands before
it. Questions ask for the value of a variable (``?c=7;``), for a sum modulo ten of variables of different texts
(``?a+c=0;``), or to recite a text from a variable on (``!a=3;b=a;``). One character is one token.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

CONSTANTS = "@$%&*^~|"
VARIABLES = string.ascii_letters
RECITED = 8
KINDS = ("lookup", "chain", "role", "sum", "recite")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, up to where the answer begins."""

    kind: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One program's texts, which agents of every role are asked about."""

    texts: tuple[str, ...]
    definitions: tuple[tuple[str, str, int], ...]
    """Variable, what it was set to, and in which text."""


def make_role(rng: random.Random, most_filler: int = 48) -> str:
    """Write a role: its constants, each defined, behind some filler."""
    names = rng.sample(CONSTANTS, len(CONSTANTS))
    filler = "".join(rng.choices("._-", k=rng.randint(0, most_filler)))
    return filler + "".join(f"{name}={rng.randrange(10)};" for name in names)


def make_puzzle(rng: random.Random, texts: int, statements: int) -> Puzzle:
    """Write texts of so many statements each."""
    names = iter(rng.sample(VARIABLES, texts * statements))
    definitions: list[tuple[str, str, int]] = []
    written: list[str] = []
    for number in range(texts):
        lines: list[str] = []
        for _ in range(statements):
            name = next(names)
            kind = rng.random()
            if kind < 0.25 and definitions:
                source = rng.choice(definitions)[0]
            elif kind < 0.5:
                source = rng.choice(CONSTANTS)
            else:
                source = str(rng.randrange(10))
            definitions.append((name, source, number))
            lines.append(f"{name}={source};")
        written.append("<" + "".join(lines) + ">")
    return Puzzle(tuple(written), tuple(definitions))


def values(role: str, puzzle: Puzzle) -> dict[str, int]:
    """What everything is worth under a role."""
    known = {line[0]: int(line[2]) for line in role.lstrip("._-").split(";") if line}
    for name, source, _ in puzzle.definitions:
        known[name] = known[source] if source in known else int(source)
    return known


def ask(rng: random.Random, role: str, puzzle: Puzzle, kind: str) -> Question | None:
    """Ask a question of one kind; None if the puzzle has none."""
    known = values(role, puzzle)
    sources = {name: source for name, source, _ in puzzle.definitions}
    fitting = {
        "lookup": [name for name, source in sources.items() if source.isdigit()],
        "chain": [name for name, source in sources.items() if source in sources],
        "role": [name for name, source in sources.items() if source in CONSTANTS],
        "sum": list(sources),
        "recite": [name for name, _, _ in puzzle.definitions],
    }[kind]
    if not fitting:
        return None
    name = rng.choice(fitting)
    if kind == "sum":
        home = {name: number for name, _, number in puzzle.definitions}
        others = [other for other in sources if home[other] != home[name]] or [x for x in sources if x != name]
        other = rng.choice(others)
        return Question(kind, f"?{name}+{other}=", str((known[name] + known[other]) % 10))
    if kind == "recite":
        whole = "".join(puzzle.texts)
        at = whole.index(f"{name}=") + 1
        if len(whole) < at + RECITED:
            return None
        return Question(kind, f"!{name}", whole[at : at + RECITED])
    return Question(kind, f"?{name}=", str(known[name]))
