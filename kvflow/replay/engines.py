"""How the servers of a replay are launched: on the CPU engine, on a GPU with made-up weights, or as the user says."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from kvflow.errors import ConfigError
from kvflow.patches.cpu import tokenizer
from kvflow.patches.cpu.link import BANDWIDTH_VARIABLE
from kvflow.patches.cpu.model import ModelSpec, build_model, llama_config
from kvflow.replay.server import Engine
from kvflow.sim import load_profile

LLAMA_8B = ModelSpec(
    hidden_size=4096, intermediate_size=14336, layers=32, heads=32, kv_heads=8, max_position=131072, dtype="bfloat16"
)
"""But for the vocabulary, which is that of the byte tokenizer: a prefill computes one row of logits."""
GPU_FLAGS = ("--load-format", "dummy", "--sampling-backend", "pytorch", "--grammar-backend", "none")
WRITE_THROUGH = ("--enable-hierarchical-cache", "--hicache-write-policy", "write_through")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Memory servers get.

    Attributes:
        host_tokens: 0 for no host tier.
        link_bytes_s: speed of the CPU engine's link to the host tier; 0 for as fast as memory copies.
    """

    device_tokens: int
    host_tokens: int
    page_tokens: int = 16
    link_bytes_s: float = 0.0

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of SGLang for the device tier."""
        return ("--page-size", str(self.page_tokens), "--max-total-tokens", str(self.device_tokens))

    @property
    def host_flags(self) -> tuple[str, ...]:
        """And for the host tier."""
        if not self.host_tokens:
            return ()
        return (*WRITE_THROUGH, "--hicache-ratio", f"{self.host_tokens / self.device_tokens:.4f}")


def cpu_engine(folder: Path, sizes: Sizes, flags: str = "") -> Engine:
    """A tiny random model on the CPU engine, which is built in a folder."""
    model = build_model(folder / "model")
    own = ("--sleep-on-idle", "--enable-metrics", *sizes.flags, *_words(flags, "--flags"))
    costs = asdict(load_profile("cpu").costs)  # what kvflow's predictions are weighed with; the defaults suit a GPU
    env: dict[str, str] = {}
    if sizes.link_bytes_s:
        costs["load_token_s"] = ModelSpec().kv_bytes_per_token / sizes.link_bytes_s
        env[BANDWIDTH_VARIABLE] = f"{sizes.link_bytes_s:.0f}"
    env |= {f"KVFLOW_COSTS__{name.upper()}": str(cost) for name, cost in costs.items()}
    return Engine(model=str(model), flags=own, host_flags=sizes.host_flags, env=env, ready_s=180.0)


def gpu_engine(folder: Path, sizes: Sizes, flags: str = "") -> Engine:
    """The geometry of Llama 3.1 8B on a GPU; SGLang makes the weights up, on which speed does not depend."""
    model = folder / "llama-8b"
    write_geometry(model)
    own = (*GPU_FLAGS, "--enable-metrics", *sizes.flags, *_words(flags, "--flags"))
    return Engine(model=str(model), device="cuda", flags=own, host_flags=sizes.host_flags)


def user_engine(launch: str, sizes: Sizes | None) -> Engine:
    """What the user launches SGLang with.

    Args:
        launch: flags of ``sglang.launch_server``, with ``--model-path``.
        sizes: of the tiers; None to leave them to the flags.

    Raises:
        ConfigError: there is no model among the flags, or a quotation is open.
    """
    words = _words(launch, "--launch")
    model, words = _taken(words, "--model-path", "--model")
    if model is None:
        raise ConfigError("--launch has no --model-path: give the flags of sglang.launch_server")
    device, words = _taken(words, "--device")
    own = (*words, "--enable-metrics", *(sizes.flags if sizes else ()))
    return Engine(model=model, device=device or "cuda", flags=own, host_flags=sizes.host_flags if sizes else ())


def write_geometry(folder: Path) -> None:
    """Write a configuration and a tokenizer for :data:`LLAMA_8B`, and no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(llama_config(LLAMA_8B)))
    tokenizer.write_tokenizer(folder, max_position=LLAMA_8B.max_position)


def _words(text: str, option: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{option} cannot be read: {error}") from None


def _taken(words: list[str], *names: str) -> tuple[str | None, list[str]]:
    """Take a flag and its value out of a command line."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names and equals:
            return value, words[:index] + words[index + 1 :]
        if name in names and index + 1 < len(words):
            return words[index + 1], words[:index] + words[index + 2 :]
    return None, words
