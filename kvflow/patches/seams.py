"""Seams: every touching point with SGLang, as data.

A seam is checked before it is applied, applied through SGLang's own hook registry where one exists, verified in the
process where it matters, and reported. SGLang's registry only logs a target it cannot hook; here a seam that does not
hold turns its feature off loudly, or is an error under ``KVFLOW_STRICT=1``.
"""

from __future__ import annotations

import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kvflow.errors import SeamMissingError

logger = logging.getLogger(__name__)


class Kind(StrEnum):
    """How a seam attaches."""

    REGISTRY = "registry"
    """An official registry of SGLang."""
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    """A hook of SGLang's plugin registry."""
    SUBCLASS = "subclass"
    """A method our subclass overrides."""
    ATTRIBUTE = "attribute"
    """A module or class attribute we set."""
    CONSTANT = "constant"
    """A constant we go by."""


class Role(StrEnum):
    """Which process a seam belongs to."""

    LAUNCH = "launch"
    """The launching process, whether or not kvflow is enabled."""
    HTTP = "http"
    SCHEDULER = "scheduler"
    RELAY = "relay"
    """Any other child: the data-parallel controller passes on what it must be able to read."""


class Feature(StrEnum):
    """What stops working without the seam."""

    FLAGS = "flags"
    HINTS = "hints"
    EVICTION = "eviction"
    ACCOUNTING = "accounting"
    ADMISSION = "admission"
    PREFETCH = "prefetch"
    REUSE = "reuse"
    CPU_ENGINE = "cpu_engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """One touching point.

    Attributes:
        target: dotted path in SGLang.
        parameters: names the target's leading parameters must have, where our body relies on them.
        body: what attaches, as ``module:function``; empty for registries and subclasses.
        why: one sentence for the documentation.
    """

    name: str
    role: Role
    kind: Kind
    feature: Feature
    target: str
    parameters: tuple[str, ...] = ()
    body: str = ""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeamState:
    """Whether a seam holds in this process.

    Attributes:
        problem: empty when it holds.
    """

    name: str
    feature: str
    kind: str
    target: str
    holds: bool
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain form for reports."""
        return asdict(self)


def resolve(target: str) -> Any:
    """Import what a dotted path names.

    Raises:
        ImportError, AttributeError: it is not there.
    """
    parent, _, attribute = target.rpartition(".")
    return getattr(pkgutil.resolve_name(parent), attribute)


def problem_of(seam: Seam) -> str:
    """Say what is wrong with a seam's target; empty when nothing is."""
    try:
        target = resolve(seam.target)
    except Exception as error:  # whatever importing a foreign module may raise is a reason, not our failure
        return f"{type(error).__name__}: {error}"
    if seam.parameters:
        found = tuple(inspect.signature(inspect.unwrap(target)).parameters)
        if found[: len(seam.parameters)] != seam.parameters:
            return f"parameters are ({', '.join(found)}), expected ({', '.join(seam.parameters)}, …)"
    return ""


def state_of(seam: Seam, problem: str) -> SeamState:
    """Put a seam and what is wrong with it on record."""
    return SeamState(
        name=seam.name,
        feature=seam.feature,
        kind=seam.kind,
        target=seam.target,
        holds=not problem,
        problem=problem,
    )


class SeamBook:
    """The seams of one process and their state.

    SGLang's registry applies the hooks of a target once, when all plugins have been loaded, and skips what is
    registered for it afterwards. So hooks are only registered here while plugins are loaded: others may have some for
    the same target. Where one is hooked already, ours goes around it.
    """

    def __init__(self, seams: Iterable[Seam]) -> None:
        self._seams = tuple(seams)
        self._states: dict[str, SeamState] = {}
        self._registered: list[Seam] = []

    def register(self) -> None:
        """Check every seam, and hand SGLang the hooks among them."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for seam in self._seams:
            problem = problem_of(seam)
            self._note(seam, problem)
            if problem or seam.kind not in (Kind.BEFORE, Kind.AFTER, Kind.AROUND):
                continue
            if seam.target in HookRegistry._patched:
                try:
                    HookRegistry._apply_target(seam.target, [(HookType(seam.kind.value), _body(seam), None)])
                except Exception as error:  # of what another plugin has put there
                    self._note(seam, f"{type(error).__name__}: {error}")
            else:
                HookRegistry.register(seam.target, _body(seam), HookType(seam.kind.value))
                self._registered.append(seam)

    def settle(self) -> None:
        """Have what is registered applied, if it is not yet; plugins that are loaded later may be left out."""
        from sglang.srt.plugins.hook_registry import HookRegistry

        HookRegistry.apply_hooks()
        for seam in self._registered:
            if seam.target not in HookRegistry._patched:
                self._note(seam, "SGLang's hook registry did not apply it; see its log")
        self._registered.clear()

    def states(self) -> list[SeamState]:
        """State of every seam, in declaration order."""
        return [self._states[seam.name] for seam in self._seams if seam.name in self._states]

    def holds(self, feature: Feature) -> bool:
        """Whether everything a feature needs is in place."""
        return all(state.holds for state in self.states() if state.feature == feature)

    def require(self, *, strict: bool) -> None:
        """Settle, and log what does not hold.

        Raises:
            SeamMissingError: something does not hold and ``strict`` is set.
        """
        self.settle()
        broken = [state for state in self.states() if not state.holds]
        for state in broken:
            logger.error("kvflow seam %s: %s: feature %s is off", state.name, state.problem, state.feature)
        if broken and strict:
            raise SeamMissingError(tuple(s.name for s in broken), "; ".join(s.problem for s in broken))

    def _note(self, seam: Seam, problem: str) -> None:
        self._states[seam.name] = state_of(seam, problem)


def _body(seam: Seam) -> Callable[..., Any]:
    return pkgutil.resolve_name(seam.body)
