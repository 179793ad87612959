"""Where the fixed part of an agent's prompt ends, when the client does not say."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kvflow.predict.bounds import touched

_MAX_ROLES = 256
_MAX_NEW = 64
"""Roles of a single workflow so far: where types are inferred, many a prompt is of one that never comes again."""
_MAX_TOKENS = 32_768


@dataclass(slots=True)
class _Observed:
    workflow_id: str
    tokens: Sequence[int]
    fixed_tokens: int = 0


class FixedPromptBoundary:
    """Learns the fixed part of prompts as what two workflows' prompts for one agent have in common.

    Prompts of one workflow are not compared with each other: a conversation extends its own history, which says
    nothing about other workflows. Memory is bounded by 256 roles of 32 768 tokens, and 64 of one workflow each, least
    recently used first out.

    Source: KVFlow (arXiv 2507.07400) section 3 names a heuristic on hit history; this is ours.
    """

    def __init__(self) -> None:
        self._observed: OrderedDict[tuple[str, str], _Observed] = OrderedDict()
        self._new: OrderedDict[tuple[str, str], _Observed] = OrderedDict()

    def observe(self, role: tuple[str, str], workflow_id: str, tokens: Sequence[int]) -> int:
        """Look at one prompt and say how many of its leading tokens are fixed; 0 until two workflows were seen.

        Args:
            role: (workflow type, agent).
            workflow_id: whose prompt it is.
            tokens: the whole prompt; a reference to it is kept.

        Cost: O(common prefix).
        """
        if role not in self._observed:
            new = touched(self._new, role, _MAX_NEW, lambda: _Observed(workflow_id, tokens[:_MAX_TOKENS]))
            if new.workflow_id == workflow_id:
                return 0
            del self._new[role]
            touched(self._observed, role, _MAX_ROLES, lambda: new)
        known = self._observed[role]
        self._observed.move_to_end(role)
        if known.workflow_id != workflow_id:
            known.fixed_tokens = common_prefix(known.tokens, tokens)
            known.workflow_id = workflow_id
            known.tokens = tokens[:_MAX_TOKENS]
            return known.fixed_tokens
        return min(known.fixed_tokens, common_prefix(known.tokens, tokens))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix. Cost: O(log n) slice comparisons, which run at memory speed."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
