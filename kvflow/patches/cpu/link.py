"""The link between device and host memory: its speed, what went over it, and a gate to stop it.

On the CPU engine both memories are the same RAM, so a link is pretended: a copy is real, and then takes as long as
the configured bandwidth and latency say. One link per direction, independent of each other (full duplex).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvflow.errors import ConfigError

BANDWIDTH_VARIABLE = "KVFLOW_CPU_LINK_BYTES_PER_S"
LATENCY_VARIABLE = "KVFLOW_CPU_LINK_LATENCY_S"


class Direction(StrEnum):
    """Which way bytes go; load back is host to device, demotion and backup device to host."""

    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """How fast a link is.

    Attributes:
        bytes_per_s: bandwidth of each direction; zero means as fast as memory copies.
        latency_s: added once per submission (all layers of one load, or all of one backup).
    """

    bytes_per_s: float = 0.0
    latency_s: float = 0.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LinkSettings:
        """Read ``KVFLOW_CPU_LINK_BYTES_PER_S`` and ``KVFLOW_CPU_LINK_LATENCY_S``; unset or empty is zero.

        Raises:
            ConfigError: a value is not a finite number of at least zero.
        """
        return cls(
            bytes_per_s=_number(environment, BANDWIDTH_VARIABLE), latency_s=_number(environment, LATENCY_VARIABLE)
        )


def _number(environment: Mapping[str, str], name: str) -> float:
    text = environment.get(name, "").strip() or "0"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{name} is {text!r}; give a number of at least 0, for example 2e7")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionStatistics:
    """What went over one direction of the link since the process started.

    Attributes:
        copies: submitted copy operations (one per layer for a load, one for a whole backup).
        busy_s: seconds the link was taken, pretended time included.
        stalled_s: seconds the scheduler thread stood still waiting for this direction.
    """

    copied_bytes: int
    copies: int
    busy_s: float
    stalled_s: float

    def since(self, before: DirectionStatistics) -> DirectionStatistics:
        """What has come on top of an earlier snapshot."""
        return DirectionStatistics(
            copied_bytes=self.copied_bytes - before.copied_bytes,
            copies=self.copies - before.copies,
            busy_s=self.busy_s - before.busy_s,
            stalled_s=self.stalled_s - before.stalled_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics:
    """Both directions; a snapshot."""

    host_to_device: DirectionStatistics
    device_to_host: DirectionStatistics


@dataclass(slots=True)
class Link:
    """One direction of the link.

    The time a copy takes is virtual: it starts when the one before it ends, or when it was submitted if later, so
    sleeping a little too long once does not add up. Worker threads call `occupy`; everything else may be read from
    any thread.
    """

    settings: LinkSettings = field(default_factory=LinkSettings)
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    copied_bytes: int = 0
    copies: int = 0
    busy_s: float = 0.0
    stalled_s: float = 0.0
    _free_at_s: float = 0.0
    _open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._open.set()

    def hold(self) -> None:
        """Stop the link before its next operation, acknowledgements included, until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Let the link run again."""
        self._open.set()

    def pass_gate(self) -> None:
        """Wait while the link is held."""
        if not self._open.is_set():
            self._open.wait()
            self.not_before_now()

    def not_before_now(self) -> None:
        """Keep time that passed waiting from counting as transfer time."""
        self._free_at_s = max(self._free_at_s, self.clock())

    def occupy(self, copy: Callable[[], int], *, submitted_s: float, opens_submission: bool) -> None:
        """Run `copy`, which returns its bytes, and keep the link busy for as long as that many bytes take."""
        began_s = self.clock()
        copied_bytes = copy()
        self.copied_bytes += copied_bytes
        self.copies += 1
        takes_s = copied_bytes / self.settings.bytes_per_s if self.settings.bytes_per_s else 0.0
        if opens_submission:
            takes_s += self.settings.latency_s
        if takes_s:
            self._free_at_s = max(self._free_at_s, submitted_s) + takes_s
            remaining_s = self._free_at_s - self.clock()
            if remaining_s > 0:
                self.sleep(remaining_s)
        self.busy_s += self.clock() - began_s

    def statistics(self) -> DirectionStatistics:
        """Take a snapshot."""
        return DirectionStatistics(
            copied_bytes=self.copied_bytes, copies=self.copies, busy_s=self.busy_s, stalled_s=self.stalled_s
        )
