"""Checks of the quality gate in a scheduler: a prompt and a part of its answer, computed spliced and exactly.

Whoever asked has been answered when that happens: the HTTP process fetches what is due, and asks it like any other
request, for one token. Where in the answer the two are compared differs from check to check.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch

from kvflow.reuse import Difference, Plan, Prompt, QualityGate, SlotKey

_MOST = 16
"""Checks under way; while there are as many, others are not begun."""
_PATIENCE = 64
"""Checks that are not begun while none ends, until the oldest is given up: its copies may have been aborted."""
_ANSWER_TOKENS = 64
"""How far into an answer they look."""
SPLICED, _EXACT = "spliced", "exact"
_CHECK_KEY = "kvflow-check"
"""Added to the extra key of spliced copies: a prefix cached for somebody else would leave nothing to splice."""


@dataclass(slots=True)
class _Check:
    """What follows one text, computed in two ways: logits, [vocabulary] each."""

    slots: tuple[SlotKey, ...]
    offers: list[dict[str, Any]]
    logits: dict[str, torch.Tensor] = field(default_factory=dict)


class Checks:
    """Checks under way on one rank; every rank has the same.

    Args:
        gate: told the results.
        replica: data-parallel rank whose prompts these are; None if there is one only.
    """

    def __init__(self, gate: QualityGate, replica: int | None) -> None:
        self.replica = replica
        self.compared = 0
        self._gate = gate
        self._under_way: OrderedDict[str, _Check] = OrderedDict()
        self._due: list[str] = []
        self._kept_out = self._begun = 0

    @property
    def under_way(self) -> int:
        """Checks that have begun and not ended."""
        return len(self._under_way)

    def begin(self, req: Any, prompt: Prompt, plan: Plan, mode: str | None) -> None:
        """Have a request checked that has been answered, unless there is no room for another check.

        Args:
            req: SGLang's.
            prompt: what it asked for.
            plan: what became of it.
            mode: of reuse, as it was asked for.
        """
        if len(self._under_way) >= _MOST and not self._make_room():
            return
        self._begun += 1  # clients may give several of their requests one id
        key = f"{self._begun}"
        answer = list(req.output_ids)
        looked = crc32(req.rid.encode()) % max(1, min(len(answer), _ANSWER_TOKENS))
        judged = {*plan.slots, *plan.check}  # others were not put in, and are not to be judged by
        common = {"input_ids": prompt.tokens.tolist() + answer[:looked], "cache_salt": req.cache_salt}
        spliced = {
            "check": (key, SPLICED),
            "slots": [(slot.start, slot.end, slot.name) for slot in prompt.slots if prompt.key(slot) in judged],
            "mode": mode,
            "exact_tokens": plan.exact_tokens if plan.spliced else 0,  # no more is put in than was
            "namespace": prompt.namespace,
            "workflow_type": prompt.workflow_type,
            "agent": prompt.agent,
            "workflow_id": prompt.workflow_id,
        }
        exact = {"check": (key, _EXACT), "slots": []}
        self._under_way[key] = _Check(
            plan.check,
            [
                {**common, "extra_key": req.extra_key, "asked": exact},
                {**common, "extra_key": f"{req.extra_key or ''}\0{_CHECK_KEY}", "asked": spliced},
            ],
        )
        self._due.append(key)

    def give_up(self, key: str) -> None:
        """Do without a check: what was to be compared is not what was to be checked."""
        self._under_way.pop(key, None)

    def clear(self) -> None:
        """Give up all."""
        self._under_way.clear()
        self._due.clear()

    def followed(self, check: tuple[str, str], logits: torch.Tensor) -> None:
        """Take the logits after one of the two; they stay on the device until both are there."""
        entry = self._under_way.get(check[0])
        if entry is not None:
            entry.logits[check[1]] = logits

    def finished(self, check: tuple[str, str]) -> list[SlotKey]:
        """One of the two has been answered; returns slots that the comparison closes."""
        entry = self._under_way.get(check[0])
        if entry is None or len(entry.logits) < 2:
            return []
        del self._under_way[check[0]]
        self._kept_out = 0
        self.compared += 1
        difference = Difference.between(entry.logits[_EXACT].cpu(), entry.logits[SPLICED].cpu())
        return [slot for slot in entry.slots if self._gate.judge(slot, difference)]

    def due(self) -> list[dict[str, Any]]:
        """What is to be asked now, once."""
        due, self._due = self._due, []
        return [offer for check in due if check in self._under_way for offer in self._under_way[check].offers]

    def _make_room(self) -> bool:
        self._kept_out += 1
        if self._kept_out < _PATIENCE:
            return False
        self._kept_out = 0
        self._under_way.popitem(last=False)
        return True
