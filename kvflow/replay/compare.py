"""Two results of replays against each other: what has got worse?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvflow.errors import ConfigError
from kvflow.replay.document import KIND
from kvflow.replay.metrics import PAIRED, Difference, Values, difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One arm at one load, before and after.

    Attributes:
        paired: by name of :data:`~kvflow.replay.metrics.PAIRED`; without those that one of both lacks.
        failed_calls: before and after.
        problem: why the arm is worse; empty if it is not.
    """

    at_once: int
    arm: str
    paired: dict[str, Difference]
    failed_calls: tuple[int, int]
    problem: str


def changes(before: Mapping[str, Any], after: Mapping[str, Any], threshold: float) -> list[Change]:
    """Compare the arms two results have in common.

    Args:
        before: a document of :func:`kvflow.replay.document.document` ...
        after: ... and another.
        threshold: share by which completion may grow; it counts if its whole interval lies beyond.

    Raises:
        ConfigError: one is no result of a replay, or they have no arm, load and workflow in common.
    """
    old, new = _arms(before), _arms(after)
    common = [key for key in old if key in new]
    found = [_change(key, old[key], new[key], threshold) for key in common]
    if not any(change.paired for change in found):
        raise ConfigError(
            "these results have no workflow in common: replay the same traces at the same load, with equal seeds"
        )
    return found


def _arms(document: Mapping[str, Any]) -> dict[tuple[int, str], Mapping[str, Any]]:
    if document.get("kind") != KIND:
        raise ConfigError(
            f"a result of kvflow replay is needed, this one is of {document.get('kind', 'something else')!r}"
        )
    return {(load["at_once"], arm["name"]): arm for load in document["loads"] for arm in load["arms"]}


def _change(key: tuple[int, str], old: Mapping[str, Any], new: Mapping[str, Any], threshold: float) -> Change:
    paired = {name: found for name in PAIRED if (found := difference(_values(old, name), _values(new, name)))}
    failed = int(old["measures"]["failed_calls"]), int(new["measures"]["failed_calls"])
    problem = ""
    completion = paired.get("completion_s")
    if failed[1] > failed[0]:
        problem = f"{failed[1]} calls failed, {failed[0]} before"
    elif completion is not None and completion.ratio_low > 1 + threshold:
        problem = f"completion takes {completion.ratio:.2f}x as long"
    return Change(at_once=key[0], arm=key[1], paired=paired, failed_calls=failed, problem=problem)


def _values(arm: Mapping[str, Any], name: str) -> Values:
    return {each["round"]: each[name] for each in arm["workflows"]}
