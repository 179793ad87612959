"""How the servers of a replay are launched: on the CPU engine, on a GPU with made-up weights, or as the user says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kvflow.errors import ConfigError
from kvflow.patches.cpu.link import BANDWIDTH_VARIABLE
from kvflow.patches.cpu.model import ModelSpec
from kvflow.replay.arms import flag_words
from kvflow.replay.models import LLAMA_8B, Recipe
from kvflow.replay.server import Engine
from kvflow.sim import load_profile

GPU_FLAGS = ("--load-format", "dummy", "--sampling-backend", "pytorch", "--grammar-backend", "none")
HIERARCHICAL = "--enable-hierarchical-cache"
WRITE_THROUGH = (HIERARCHICAL, "--hicache-write-policy", "write_through")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Memory servers get; None leaves it to the other flags.

    Attributes:
        host_tokens: 0 for no host tier; more only together with ``device_tokens``.
        link_bytes_s: speed of the CPU engine's link to the host tier; 0 for as fast as memory copies.
    """

    device_tokens: int | None
    host_tokens: int | None
    page_tokens: int | None = 16
    link_bytes_s: float = 0.0

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of SGLang for the device tier."""
        page = () if self.page_tokens is None else ("--page-size", str(self.page_tokens))
        return page if self.device_tokens is None else (*page, "--max-total-tokens", str(self.device_tokens))

    @property
    def host_flags(self) -> tuple[str, ...]:
        """And for the host tier."""
        if not self.host_tokens or not self.device_tokens:
            return ()
        return (*WRITE_THROUGH, "--hicache-ratio", f"{self.host_tokens / self.device_tokens:.4f}")


def cpu_engine(folder: Path, sizes: Sizes, flags: str = "") -> Engine:
    """A tiny random model on the CPU engine, which is built in a folder when a server is launched."""
    host, others = _profile_flags(flags)
    spec = ModelSpec()
    own = ("--sleep-on-idle", "--enable-metrics", *sizes.flags, *others)
    costs = asdict(load_profile("cpu").costs)  # what kvflow's predictions are weighed with; the defaults suit a GPU
    env: dict[str, str] = {}
    if sizes.link_bytes_s:
        costs["load_token_s"] = spec.kv_bytes_per_token / sizes.link_bytes_s
        env[BANDWIDTH_VARIABLE] = f"{sizes.link_bytes_s:.0f}"
    env |= {f"KVFLOW_COSTS__{name.upper()}": str(cost) for name, cost in costs.items()}
    context = _context(flags, "--flags") or spec.max_position
    return Engine(
        model=str(folder / "model"),
        recipe=Recipe.TINY,
        flags=own,
        host_flags=(*sizes.host_flags, *host),
        env=env,
        context_tokens=context,
        token_bytes=spec.kv_bytes_per_token,
        ready_s=180.0,
    )


def gpu_engine(folder: Path, sizes: Sizes, flags: str = "") -> Engine:
    """The geometry of Llama 3.1 8B on a GPU; SGLang makes the weights up, on which speed does not depend."""
    host, others = _profile_flags(flags)
    own = (*GPU_FLAGS, "--enable-metrics", *sizes.flags, *others)
    context = _context(flags, "--flags") or LLAMA_8B.max_position
    return Engine(
        model=str(folder / "llama-8b"),
        recipe=Recipe.GEOMETRY,
        device="cuda",
        flags=own,
        host_flags=(*sizes.host_flags, *host),
        context_tokens=context,
    )


def user_engine(launch: str, sizes: Sizes) -> Engine:
    """What the user launches SGLang with. Flags of the host tier are only for arms that have one.

    Args:
        launch: flags of ``sglang.launch_server``, with ``--model-path``.
        sizes: of the tiers.

    Raises:
        ConfigError: there is no model among the flags, a quotation is open, flags and sizes say the same thing,
            or an address or a key is among them.
    """
    words = flag_words(launch, "--launch")
    model, words = _taken(words, "--model-path", "--model")
    if model is None:
        raise ConfigError("--launch has no --model-path: give the flags of sglang.launch_server")
    given = asdict(sizes)
    for size, twice in _sizes_among(words):
        if given[size] is not None:
            raise ConfigError(f"--launch has {twice}, and {_option(size)} is given, too: leave one of them out")
    device, words = _taken(words, "--device")
    host, words = _host_tier(words)
    return Engine(
        model=model,
        device=device or "cuda",
        flags=(*words, "--enable-metrics", *sizes.flags),
        host_flags=() if sizes.host_tokens == 0 else (*sizes.host_flags, *host),
        context_tokens=_context(launch, "--launch"),
    )


def _profile_flags(flags: str) -> tuple[list[str], list[str]]:
    """Read ``--flags``, those of the host tier apart; sizes, which a profile always has, are options of their own.

    Raises:
        ConfigError: a size is among them.
    """
    words = flag_words(flags, "--flags")
    for size, twice in _sizes_among(words):
        raise ConfigError(f"--flags has {twice}: give {_option(size)} instead")
    return _host_tier(words)


def _sizes_among(words: list[str]) -> Iterator[tuple[str, str]]:
    """Find flags that say how large a tier or page is: the name of the size, and the flag."""
    for size, names in (
        ("page_tokens", ("--page-size",)),
        ("device_tokens", ("--max-total-tokens",)),
        ("host_tokens", ("--hicache-ratio", "--hicache-size")),
    ):
        yield from ((size, name) for name in names if _taken(words, name)[0] is not None)


def _option(size: str) -> str:
    return f"--{size.replace('_', '-')}"


def flag_value(flags: str, name: str) -> str | None:
    """Find the value of a flag in a command line; None if it is not there."""
    return _taken(flag_words(flags, "--launch"), name)[0]


def _taken(words: list[str], *names: str) -> tuple[str | None, list[str]]:
    """Take a flag and its value out of a command line."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names and equals:
            return value, words[:index] + words[index + 1 :]
        if name in names and index + 1 < len(words):
            return words[index + 1], words[:index] + words[index + 2 :]
    return None, words


def _context(flags: str, option: str) -> int | None:
    value, _ = _taken(flag_words(flags, option), "--context-length")
    return int(value) if value is not None and value.isdecimal() else None


def _host_tier(words: list[str]) -> tuple[list[str], list[str]]:
    """Divide a command line into the flags of the host tier, and the others."""
    host: list[str] = []
    others: list[str] = []
    group = others
    for word in words:
        if word.startswith("--"):
            group = host if word == HIERARCHICAL or word.startswith("--hicache-") else others
        group.append(word)
    return host, others
