"""Whose answers a prompt quotes: how agents of one program are told that send no hints, and hand on what they say."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

Fingerprinter = Callable[[Sequence[int], int], Sequence[int]]
"""Gives hashes that stand for a text, of runs of so many of its tokens; texts that share a longer run share one."""

Fingerprint = tuple[str, int]
"""A fingerprint in a namespace."""

_LEAST = 2
"""Fingerprints that a prompt has to have in common with what a workflow has said."""
_MAX_OF_WORKFLOW = 4096
_MAX_OF_PROMPT = 2048
"""Fingerprints by which it is known what all prompts of an agent say: those of about 7,000 tokens."""
_MAX_AGENTS = 256
_MAX_SAYERS = 4


class Quotes:
    """Remembers what live workflows have said that they had not read, and finds it in prompts of other contexts.

    What the prompts of an agent have in common says nothing, nor does what several workflows have said.

    Source: fingerprints are winnowed (Schleimer, Wilkerson, Aiken, SIGMOD 2003); what is made of them is ours.

    Args:
        marks: fingerprints of a text.
        most: fingerprints of answers to remember.
    """

    def __init__(self, marks: Fingerprinter, most: int = 2**17) -> None:
        self.marks = marks
        self._most = most
        self._sayers: OrderedDict[Fingerprint, tuple[str, ...]] = OrderedDict()
        self._said: dict[str, dict[Fingerprint, None]] = {}
        self._common: OrderedDict[str, frozenset[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sayers)

    def quoted(self, prompt: Sequence[int], namespace: str, agent: str) -> str | None:
        """The workflow whose answers the first prompt of a context quotes; None if there is none.

        Args:
            prompt: its marks.
            namespace: what keeps equal prompts apart.
            agent: whose prompt it is, for what all of its prompts have in common.

        Cost: O(marks).
        """
        common = self._common.get(agent)
        sayers = {mark: self._sayers.get((namespace, mark), ()) for mark in prompt}
        alone = (who[0] for mark, who in sayers.items() if len(who) == 1 and mark not in (common or ()))
        votes = Counter(alone)
        begun = frozenset(mark for mark in prompt[:_MAX_OF_PROMPT] if not sayers[mark])
        self._common[agent] = begun if common is None else common & frozenset(prompt)
        self._common.move_to_end(agent)
        if len(self._common) > _MAX_AGENTS:
            self._common.popitem(last=False)
        workflow_id, count = max(votes.items(), key=lambda vote: vote[1], default=("", 0))
        return workflow_id if count >= _LEAST else None

    def said(self, answer: Iterable[int], read: Collection[int], namespace: str, workflow_id: str) -> None:
        """A workflow has answered.

        Args:
            answer: marks of it.
            read: those of what it has read, which is not its own.
            namespace: of its prompts.
            workflow_id: whose answer it is.

        Cost: O(marks of the answer).
        """
        said = self._said.setdefault(workflow_id, {})
        for mark in answer:
            place = (namespace, mark)
            sayers = self._sayers.get(place, ())
            if mark not in read and workflow_id not in sayers and len(sayers) < _MAX_SAYERS:
                self._sayers[place] = (*sayers, workflow_id)
                said[place] = None
        while len(said) > _MAX_OF_WORKFLOW:
            self._forget(next(iter(said)), workflow_id)
        while len(self._sayers) > self._most:
            place, sayers = next(iter(self._sayers.items()))
            for sayer in sayers:
                self._forget(place, sayer)

    def ended(self, workflow_id: str) -> None:
        """A workflow is over: others may say the same."""
        for place in [*self._said.get(workflow_id, ())]:
            self._forget(place, workflow_id)
        self._said.pop(workflow_id, None)

    def _forget(self, place: Fingerprint, workflow_id: str) -> None:
        """A workflow has said something no longer."""
        self._said[workflow_id].pop(place, None)
        others = tuple(sayer for sayer in self._sayers.get(place, ()) if sayer != workflow_id)
        if others:
            self._sayers[place] = others
        else:
            self._sayers.pop(place, None)
