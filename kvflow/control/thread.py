"""One growing context of a client that says nothing, and how a prompt is known to go on from it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvflow.engine.boundary import common_prefix

HEAD = 8
"""Tokens or bytes behind what is digested by which ends are found."""
TEMPLATE = 16
"""Tokens or bytes at the end of a prompt that may be missing in the next one, at most: chat templates ask for an
answer in other words than they render it with."""

Mark = tuple[str, str, str]
"""Namespace, kind and name."""


@dataclass(frozen=True, slots=True)
class End:
    """Where a prompt ended.

    Attributes:
        digest: of its full units, without those that its last TEMPLATE tokens or bytes are in.
        rest: what came after them.
        length: of the prompt.
    """

    digest: int
    rest: tuple[int, ...]
    length: int

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """What prompts that go on have in common with it."""
        return self.digest, self.rest[:HEAD] if len(self.rest) >= HEAD + TEMPLATE else ()

    def continued_by(self, following: Sequence[int], length: int, template: int) -> bool:
        """Whether a prompt goes on here: with all of it, or with more behind and all but the template's last words.

        Args:
            following: what the prompt has in the place of `rest`.
            length: of the prompt.
            template: how long the words are with which prompts like it end.
        """
        common = common_prefix(following, self.rest)
        missing = len(self.rest) - common
        return not missing or (missing < template and length >= self.length + TEMPLATE)


@dataclass(slots=True, eq=False)
class Thread:
    """One growing context, or an agent of a workflow that begins anew every time.

    Attributes:
        kind: what its prompts begin with.
        namespace: what keeps equal prompts apart.
        gram: tokens or bytes in a row by which its answers are found in others' prompts.
        parent_id: the workflow that it works for, if that is another one.
        began: end of its first prompt.
        ends: of its prompts, the latest last.
        marks: further names by which it is known.
        brought: names it began with the last time, which may be examples' that others begin with, too.
        asking: requests under way.
        over: its workflow has ended, as far as anybody knows.
        read: fingerprints of its prompts, the latest last.
    """

    workflow_id: str
    workflow_type: str
    agent: str
    kind: str
    namespace: str
    gram: int
    parent_id: str | None = None
    began: End | None = None
    ends: list[End] = field(default_factory=list)
    marks: set[Mark] = field(default_factory=set)
    brought: set[Mark] = field(default_factory=set)
    asking: int = 0
    over: bool = False
    read: array[int] = field(default_factory=lambda: array("q"))

    def has_gone_on_from(self, end: End) -> bool:
        """Whether this is where it began, and it is elsewhere by now: whoever asks the same is somebody else."""
        return not self.over and end == self.began != self.ends[-1]
