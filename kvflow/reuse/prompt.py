"""What a request says about reuse."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch


class Mode(StrEnum):
    """How KV from elsewhere is corrected."""

    NAIVE = "naive"
    """Not at all: for comparison only."""
    ROTATE = "rotate"
    """Keys are moved to their new position."""
    KVCOMM = "kvcomm"
    """And offsets of similar examples are added, where there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A mode, and what of each segment is computed nevertheless.

    Attributes:
        repair_tokens: the first so many ...
        repair_share: ... and at most such a share of what is left, where KV differs most.
    """

    mode: Mode
    repair_tokens: int = 0
    repair_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A range of a prompt that may hold another text each time.

    Attributes:
        start: first token ...
        end: ... and the one after its last.
        name: what it is for; the same in every prompt of an agent.
    """

    start: int
    end: int
    name: str


SlotKey = tuple[str, str, str]
"""Namespace, workflow type, and name of a slot: what is judged together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """A request that asks for reuse.

    Attributes:
        namespace: whose it is; nothing is shared across.
        workflow_id: the run of a workflow that it belongs to; empty if that is not known.
        program_id: the workflow at the root of that one; empty if it is the root itself.
        tokens: [n] int64.
        slots: in order, not overlapping.
        trial: nobody waits for it: it is spliced whatever the quality gate says.
    """

    namespace: str
    workflow_type: str
    agent: str
    tokens: torch.Tensor
    slots: tuple[Slot, ...]
    method: Method
    trial: bool = False
    workflow_id: str = ""
    program_id: str = ""

    def key(self, slot: Slot) -> SlotKey:
        """By which one of its slots is judged."""
        return (self.namespace, self.workflow_type, slot.name)
