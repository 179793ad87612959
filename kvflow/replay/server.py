"""The servers of a replay, started or found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from kvflow.client.server import KEEPALIVE_S
from kvflow.config import CONFIG_VARIABLE
from kvflow.errors import ServerUnavailableError
from kvflow.patches.cpu.launch import ServerProcess, launch_server
from kvflow.patches.cpu.link import Direction, DirectionStatistics
from kvflow.patches.cpu.publish import forget_statistics, read_statistics
from kvflow.replay.arms import Arm, flag_of
from kvflow.replay.forcing import FLAG
from kvflow.replay.models import Recipe, make_model

_STORAGE_FLAG = "--hicache-storage-backend"
_STORAGE_VARIABLE = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
_COSTS = "KVFLOW_COSTS__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How servers are launched.

    Attributes:
        model: for ``--model-path``.
        recipe: how it is made where it is not there yet; None for one that is the user's.
        flags: of SGLang, shared by all arms.
        host_flags: those of the host tier, for arms that have one.
        env: variables, shared by all arms.
        context_tokens: longest context of the model; None if it is not known.
        token_bytes: what a token of its takes on the link; None if that is not known.
        ready_s: how long a server may take to start.
    """

    model: str
    recipe: Recipe | None = None
    device: str = "cpu"
    flags: tuple[str, ...] = ()
    host_flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    context_tokens: int | None = None
    token_bytes: int | None = None
    ready_s: float = 600.0

    def make_model(self) -> None:
        """Make the model, if it is to be made and is not there yet.

        Raises:
            ConfigError: its folder holds files of somebody else.
        """
        if self.recipe is not None:
            make_model(self.recipe, Path(self.model))

    def flags_of(self, arm: Arm) -> tuple[str, ...]:
        """Flags of SGLang for the server of an arm."""
        return (*self.flags, *(self.host_flags if arm.host else ()), *arm.flags)

    def env_of(self, arm: Arm) -> dict[str, str]:
        """Variables for the server of an arm; they would win over the costs in a file of settings that it names."""
        own = dict(arm.env).get(CONFIG_VARIABLE) or flag_of(self.flags_of(arm), "--kvflow-config")
        shared = {name: value for name, value in self.env.items() if not (own and name.startswith(_COSTS))}
        return shared | dict(arm.env)

    def settings_files(self, arm: Arm) -> set[str]:
        """Files that tell the server of an arm its settings, kvflow's or SGLang's."""
        flags = self.flags_of(arm)
        named = (self.env_of(arm).get(CONFIG_VARIABLE), flag_of(flags, "--kvflow-config"), flag_of(flags, "--config"))
        return {path for path in named if path}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server of an arm.

    Attributes:
        process: None for one that was found.
        flags: it was launched with.
        link_path: files of this name have what the CPU engine measures of its link; None elsewhere.
        api_key: it wants; None for none.
    """

    arm: Arm
    url: str
    process: ServerProcess | None = None
    flags: tuple[str, ...] = ()
    link_path: Path | None = None
    api_key: str | None = field(default=None, repr=False)

    def client(self, timeout_s: float) -> httpx.AsyncClient:
        """Make a client; each of its steps, such as waiting for the next piece of an answer, may take so long."""
        limits = httpx.Limits(max_connections=4096, max_keepalive_connections=512, keepalive_expiry=KEEPALIVE_S)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(base_url=self.url, timeout=timeout_s, limits=limits, headers=headers, trust_env=False)

    @property
    def stores(self) -> bool:
        """Whether its flags ask for a storage tier."""
        return _stores(self.flags)

    def link(self) -> DirectionStatistics | None:
        """What has come from the host so far, and how long forward passes have waited for it; None if not measured."""
        return None if self.link_path is None else read_statistics(self.link_path)[Direction.HOST_TO_DEVICE]


@contextlib.contextmanager
def serving(arm: Arm, engine: Engine | None, folder: Path, api_key: str | None = None) -> Iterator[Running]:
    """Run an arm's server for the length of a ``with`` block, with its model made before, or use the one it names.

    Args:
        arm: which.
        engine: how to launch it; may be None if the arm has a URL.
        folder: for its log.
        api_key: it wants, if it does.

    Raises:
        ConfigError: where its model is to be made are files of somebody else.
        ServerUnavailableError: it did not start; the message ends with the end of its log.
    """
    if arm.url is not None:
        yield Running(arm=arm, url=arm.url, api_key=api_key)
        return
    if engine is None:
        raise ServerUnavailableError(f"arm {arm.name!r} has no URL, and there is nothing to launch")
    engine.make_model()
    link_path, storage = folder / f"{arm.slug}.link", folder / f"{arm.slug}.storage"
    forget_statistics(link_path)
    flags = engine.flags_of(arm)
    env = {"KVFLOW_STRICT": "1", "KVFLOW_CPU_LINK_STATISTICS": str(link_path)}
    env |= {_STORAGE_VARIABLE: str(storage)} if _stores(flags) else {}
    env |= engine.env_of(arm)
    with launch_server(
        engine.model,
        log_path=folder / f"{arm.slug}.log",
        extra_args=[FLAG, *flags],
        env=env,
        device=engine.device,
        timeout_s=engine.ready_s,
    ) as process:
        measured = link_path if engine.device == "cpu" else None
        yield Running(arm=arm, url=process.url, process=process, flags=flags, link_path=measured, api_key=api_key)


def _stores(flags: Sequence[str]) -> bool:
    return flag_of(flags, _STORAGE_FLAG) is not None
