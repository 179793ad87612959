"""Whose answers a prompt quotes: how agents of one program are told that send no hints, and hand on what they say."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

Fingerprints = Callable[[Sequence[int], int], Sequence[int]]
"""Hashes that stand for a text, of runs of so many of its tokens; texts that share a longer run share one."""

_LEAST = 2
"""Fingerprints that a prompt has to have in common with what a workflow has said."""
_MAX_OF_WORKFLOW = 4096
_MAX_OF_PROMPT = 2048
"""Fingerprints by which it is known what all prompts of an agent say: those of about 9,000 tokens."""
_MAX_AGENTS = 256


class Quotes:
    """Remembers what live workflows have said, and finds it in prompts of other contexts.

    What the prompts of an agent have in common says nothing, nor does what several workflows have said.

    Source: fingerprints are winnowed (Schleimer, Wilkerson, Aiken, SIGMOD 2003); what is made of them is ours.

    Args:
        fingerprints: of a text.
        most: fingerprints of answers to remember.
    """

    def __init__(self, fingerprints: Fingerprints, most: int = 2**17) -> None:
        self._fingerprints = fingerprints
        self._most = most
        self._owner: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._said: dict[str, list[tuple[str, int]]] = {}
        self._common: OrderedDict[str, frozenset[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owner)

    def quoted(self, prompt: Sequence[int], gram: int, namespace: str, agent: str) -> str | None:
        """The workflow whose answers the first prompt of a context quotes; None if there is none.

        Args:
            prompt: token ids, or characters.
            gram: tokens in a row that make a fingerprint.
            namespace: what keeps equal prompts apart.
            agent: whose prompt it is, for what all of its prompts have in common.

        Cost: O(prompt), about 2 ms for 40 k tokens.
        """
        marks = self._fingerprints(prompt, gram)
        common = self._common.get(agent)
        owners = {mark: self._owner.get((namespace, mark), "") for mark in marks}
        votes = Counter(owner for mark, owner in owners.items() if owner and mark not in (common or ()))
        begun = frozenset(mark for mark in marks[:_MAX_OF_PROMPT] if not owners[mark])
        self._common[agent] = begun if common is None else common & frozenset(marks)
        self._common.move_to_end(agent)
        if len(self._common) > _MAX_AGENTS:
            self._common.popitem(last=False)
        workflow_id, count = max(votes.items(), key=lambda vote: vote[1], default=("", 0))
        return workflow_id if count >= _LEAST else None

    def said(self, answer: Sequence[int], gram: int, namespace: str, agent: str, workflow_id: str) -> None:
        """An agent of a workflow has answered. Cost: O(answer)."""
        common = self._common.get(agent, frozenset())
        said = self._said.setdefault(workflow_id, [])
        for mark in self._fingerprints(answer, gram):
            place = (namespace, mark)
            if mark in common or self._owner.get(place) == workflow_id:
                continue
            self._owner[place] = "" if place in self._owner else workflow_id
            said.append(place)
        self._drop(said[:-_MAX_OF_WORKFLOW], workflow_id)
        del said[:-_MAX_OF_WORKFLOW]
        while len(self._owner) > self._most:
            self._owner.popitem(last=False)

    def forget(self, workflow_id: str) -> None:
        """A workflow is over: others may say the same."""
        self._drop(self._said.pop(workflow_id, ()), workflow_id)

    def _drop(self, places: Iterable[tuple[str, int]], workflow_id: str) -> None:
        for place in places:
            if self._owner.get(place) in (workflow_id, ""):
                del self._owner[place]
