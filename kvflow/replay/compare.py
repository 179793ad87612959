"""Two results of replays against each other: what has got worse?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvflow.errors import ConfigError
from kvflow.replay.document import KIND
from kvflow.replay.metrics import PAIRED, Difference, Values, difference

_SAME = ("load", "pace", "seed", "free", "token_ids", "chat", "keep_servers")
"""Settings without which two results are not of the same work."""
_SAME_OF_LOAD = ("programs", "sizes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Calls of one arm, and how many of them failed."""

    failed: int
    calls: int

    @property
    def share(self) -> float:
        """Of calls that failed."""
        return self.failed / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One arm at one load, before and after.

    Attributes:
        paired: by name of :data:`~kvflow.replay.metrics.PAIRED`; without those that one of both lacks.
        before: its calls ...
        after: ... and those it has now; None if the arm or the load is missing.
        problem: why the arm is worse; empty if it is not.
    """

    at_once: int
    arm: str
    paired: dict[str, Difference]
    before: Count
    after: Count | None
    problem: str

    @property
    def more_failed(self) -> bool:
        """Whether a larger share of calls failed."""
        return self.after is not None and self.after.share > self.before.share

    @property
    def fewer_failed(self) -> bool:
        """Whether a smaller share of calls failed."""
        return self.after is not None and self.after.share < self.before.share

    @property
    def says_something(self) -> bool:
        """Whether there was anything to compare, or nothing where there had been something."""
        return bool(self.paired) or self.after is None or self.more_failed or self.fewer_failed

    @property
    def too_few(self) -> bool:
        """Whether it may well be worse, but there are too few pairs or rounds to tell."""
        return not self.problem and "completion_s" in self.paired and not self.tells

    @property
    def tells(self) -> bool:
        """Whether there are pairs and rounds enough to tell whether it is worse."""
        completion = self.paired.get("completion_s")
        return completion is not None and completion.tells


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], threshold: float, *, force: bool = False
) -> list[Change]:
    """Compare the arms of a result with those of a later one, which may have more.

    Args:
        before: a document of :func:`kvflow.replay.document.document` ...
        after: ... and another.
        threshold: share by which completion may grow; it counts if its whole interval lies beyond.
        force: compare them even if they are not of the same work.

    Raises:
        ConfigError: one is no result of a replay, they are not of the same work, or have no workflow in common.
    """
    old, new = arms(before), arms(after)
    differing = [] if force else _differing(before, after)
    if differing:
        raise ConfigError(f"these results are not of the same work: {'; '.join(differing)}. --force compares them")
    found = [_change(key, arm, new.get(key), threshold) for key, arm in old.items()]
    if not any(change.says_something for change in found) and any(change.problem for change in found):
        raise ConfigError(
            "these results have no workflow in common: replay the same traces at the same load, with equal seeds"
        )
    return found


def surroundings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What besides the code may make two results differ: machine, versions, flags and variables of the servers."""
    found = []
    for name in ("machine", "versions"):
        old, new = before.get(name) or {}, after.get(name) or {}
        found += [f"{key} {old.get(key)} and {new.get(key)}" for key in old | new if old.get(key) != new.get(key)]
    engines = [(document.get("settings") or {}).get("engine") or {} for document in (before, after)]
    for key in ("flags", "host_flags", "env"):
        old, new = (engine.get(key) for engine in engines)
        if old != new and None not in (old, new):
            found.append(f"{key.replace('_', ' ')} of the servers")
    return [*found, *_of_arms(before, after)]


def _of_arms(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What arms of one name differ in; what one of both does not say counts as equal."""
    old, new = ({name: arm for (_, name), arm in each.items()} for each in (_known(before), _known(after)))
    return [
        f"{what} of arm {name!r}"
        for name in old
        if name in new
        for what in ("flags", "env", "hints")
        if None not in (old[name].get(what), new[name].get(what)) and old[name][what] != new[name][what]
    ]


def _known(document: Mapping[str, Any]) -> dict[tuple[int, str], Mapping[str, Any]]:
    return arms(document) if "loads" in document else {}


def arms(document: Mapping[str, Any]) -> dict[tuple[int, str], Mapping[str, Any]]:
    """Arms of a result, by programs at once and name.

    Raises:
        ConfigError: it is no result of a replay, or none with all that is compared.
    """
    if document.get("kind") != KIND:
        raise ConfigError(
            f"a result of kvflow replay is needed, this one is of {document.get('kind', 'something else')!r}"
        )
    try:
        loads = [(min(load["at_once"], load["programs"]), load["arms"]) for load in document["loads"]]
        found = {(at_once, arm["name"]): arm for at_once, arms in loads for arm in arms}
        for arm in found.values():
            _count(arm)
            _values(arm, PAIRED[0])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"a result is not whole ({error!r}): let kvflow replay --json write it again") from None
    return found


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What the work of two results differs in; what one of them does not say counts as equal."""
    old, new = _work(before), _work(after)
    return [f"{name} {old[name]} and {new[name]}" for name in old if name in new and old[name] != new[name]]


def _work(document: Mapping[str, Any]) -> dict[str, Any]:
    settings = document.get("settings") or {}
    found = {name: settings[name] for name in _SAME if name in settings}
    found["load"] = {name: value for name, value in found.get("load", {}).items() if name != "at_once"}
    engine = settings.get("engine") or {}
    if engine:
        found |= {"model": Path(engine.get("model", "")).name, "device": engine.get("device")}
    if "traces_digest" in document:
        found["traces"] = document["traces_digest"]
    for load in document["loads"]:
        found |= {f"{name} at {load['at_once']} at once": load[name] for name in _SAME_OF_LOAD if name in load}
    return found


def _change(key: tuple[int, str], old: Mapping[str, Any], new: Mapping[str, Any] | None, threshold: float) -> Change:
    at_once, arm = key
    before = _count(old)
    if new is None:
        return Change(at_once=at_once, arm=arm, paired={}, before=before, after=None, problem="it is missing")
    paired = {name: found for name in PAIRED if (found := difference(_values(old, name), _values(new, name)))}
    found = Change(at_once=at_once, arm=arm, paired=paired, before=before, after=_count(new), problem="")
    had_whole = any(_values(old, PAIRED[0]).values())
    return replace(found, problem=_problem(found, threshold, had_whole=had_whole))


def _problem(change: Change, threshold: float, *, had_whole: bool) -> str:
    completion = change.paired.get("completion_s")
    if change.more_failed:
        return "more of its calls failed"
    if completion is None:
        lost = had_whole and not change.fewer_failed
        return "it has no workflow in common with what it was" if lost else ""
    slower = completion.tells and completion.ratio_low > 1 + threshold
    return f"completion takes {completion.ratio:.2f}x as long" if slower else ""


def _count(arm: Mapping[str, Any]) -> Count:
    return Count(failed=int(arm["measures"]["failed_calls"]), calls=int(arm["measures"]["calls"]))


def _values(arm: Mapping[str, Any], name: str) -> Values:
    return {each["round"]: each.get(name, {}) for each in arm["workflows"]}
