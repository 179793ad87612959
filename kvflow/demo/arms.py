"""The arms of the comparison: how their servers are started, emptied and observed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kvflow.demo.measure import RoundRecord
from kvflow.errors import ServerUnavailableError
from kvflow.patches.cpu.link import Direction, DirectionStatistics
from kvflow.patches.cpu.publish import read_statistics

_RESIDENCY_PERIOD_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration of the comparison.

    Attributes:
        flags: what its server is started with beyond the flags all arms share.
    """

    name: str
    policy: str
    kvflow: bool
    flags: tuple[str, ...] = ()


ARMS = (
    Arm(name="sglang hicache lru", policy="lru", kvflow=False),
    Arm(name="kvflow", policy="cost", kvflow=True, flags=("--enable-kvflow",)),
)


@dataclass(slots=True)
class ArmResult:
    """Everything one arm did.

    Attributes:
        stall_s: seconds forward passes waited for load-backs.
        loaded_tokens: tokens that came from the host, for whatever reason.
    """

    arm: Arm
    rounds: list[RoundRecord] = field(default_factory=list)
    residency: list[dict[str, Any]] = field(default_factory=list)
    stall_s: float = 0.0
    loaded_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain form for the result file."""
        return {
            "name": self.arm.name,
            "policy": self.arm.policy,
            "kvflow": self.arm.kvflow,
            "stall_s": self.stall_s,
            "loaded_tokens": self.loaded_tokens,
            "steps": [step.as_dict() for record in self.rounds for step in record.steps],
            "workflows": [workflow for record in self.rounds for workflow in record.workflows],
            "residency": self.residency,
        }


class ArmServer:
    """A running server of one arm.

    Args:
        url: base address.
        link_path: files of this name have the link statistics of the CPU engine.
    """

    def __init__(self, arm: Arm, url: str, link_path: Path) -> None:
        self.arm = arm
        self.url = url
        self.seams_hold = False
        self._link_path = link_path

    async def check(self, client: httpx.AsyncClient) -> None:
        """Make sure the arm is what it says: a baseline without kvflow, or kvflow with every seam in place.

        Raises:
            ServerUnavailableError: it is not.
        """
        response = await client.get("/kvflow/v1/status")
        if not self.arm.kvflow:
            if response.status_code != httpx.codes.NOT_FOUND:
                raise ServerUnavailableError(f"{self.arm.name}: kvflow answers in the arm that must not have it")
            return
        status = response.raise_for_status().json()
        policies = {replica["policy"] for replica in status["replicas"]}
        self.seams_hold = status["seams_hold"]
        if not self.seams_hold or policies != {self.arm.policy}:
            raise ServerUnavailableError(f"{self.arm.name}: seams {status['seams_hold']}, policies {policies}")

    def link(self) -> DirectionStatistics:
        """What has come from the host since it started, and how long forward passes have waited for it."""
        return read_statistics(self._link_path)[Direction.HOST_TO_DEVICE]

    @contextlib.asynccontextmanager
    async def observed(self, client: httpx.AsyncClient, samples: list[dict[str, Any]]) -> AsyncIterator[None]:
        """Sample what is cached for whom while a round runs; stock SGLang cannot tell."""
        if not self.arm.kvflow:
            yield
            return
        task = asyncio.create_task(_sample(client, samples))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _sample(client: httpx.AsyncClient, samples: list[dict[str, Any]]) -> None:
    began_s = time.perf_counter()
    while True:
        response = await client.get("/kvflow/v1/cache")
        if response.status_code == httpx.codes.OK:
            tokens: Mapping[str, int] = response.json()["replicas"][0]["tokens"]
            samples.append({"at_s": round(time.perf_counter() - began_s, 3), "tokens": dict(tokens)})
        await asyncio.sleep(_RESIDENCY_PERIOD_S)
