"""The CPU engine: the real SGLang server, scheduler, radix tree and hierarchical cache on a machine without a GPU.

It consists of an out-of-tree platform (`platform`), the few patches the hierarchical cache needs (`hicache`) with
asynchronous, throttled copies (`streams`, `link`), a tiny model (`model`) and a launcher (`launch`). It knows
nothing of hints, policies or the rest of kvflow. Importing this package costs nothing: `activate` runs during
``import sglang`` in every process of every SGLang installation that has kvflow beside it.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from kvflow.errors import ConfigError, UnsupportedEngineError
from kvflow.patches.cpu.targets import TARGETS

__all__ = ["ENGINE_VARIABLE", "TARGETS", "activate", "declare_torchvision_ops", "install", "wanted"]

ENGINE_VARIABLE = "KVFLOW_CPU_ENGINE"
ON = ("1", "true", "on")

_kept: list[Any] = []
"""Op libraries; their definitions vanish with them."""
_installed = False


def wanted() -> bool:
    """Whether ``KVFLOW_CPU_ENGINE`` asks for the CPU engine (1, true or on)."""
    return os.environ.get(ENGINE_VARIABLE, "").lower() in ON


def activate() -> str | None:
    """Choose SGLang's platform; entry point of ``sglang.srt.platforms``, called while SGLang is imported.

    GPUs are hidden from the process, since SGLang asks torch and not its platform which kernels to import.

    Returns:
        The platform class as ``module:name``, or None when the CPU engine is not asked for.

    Raises:
        SystemExit: the environment contradicts the CPU engine. SGLang logs any ordinary exception of a platform
            plugin and goes on without it, to fail later for reasons nobody understands.
    """
    if not wanted():
        return None
    try:
        _check_environment()
    except (ConfigError, UnsupportedEngineError) as error:
        raise SystemExit(f"kvflow: cannot start the CPU engine: {error}") from error
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Start-up is mostly imports, and a third of their time is garbage collection that finds nothing.
    gc.set_threshold(200_000, 20, 100)
    declare_torchvision_ops()
    return "kvflow.patches.cpu.platform:KvflowCpuPlatform"


def _check_environment() -> None:
    from kvflow.patches.cpu.link import LinkSettings

    LinkSettings.from_environment(os.environ)
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        raise UnsupportedEngineError(
            "SGLANG_USE_CPU_ENGINE=1, SGLang's own CPU platform, which needs the sgl_kernel package",
            f"that variable unset beside {ENGINE_VARIABLE}=1",
        )


def declare_torchvision_ops() -> None:
    """Declare the two torchvision ops its Python code expects, when its compiled part does not fit this torch.

    SGLang and transformers import torchvision, and that import fails on a CPU torch with the default wheel. One for
    CUDA fits, and would abort the process when it declares its own beside ours.
    """
    import torch

    if torch.version.cuda is not None:
        return
    try:
        torch.ops.torchvision.nms  # noqa: B018 - the attribute access is the question
    except (AttributeError, RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for op in ("nms", "qnms"):
            library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)


def install() -> None:
    """Patch the hierarchical cache of this scheduler process; the plugin entry point calls it, once or more often.

    Raises:
        SystemExit: SGLang cannot be patched; as in `activate`, an ordinary exception would be swallowed.
    """
    global _installed
    if _installed:
        return
    try:
        from kvflow.patches.cpu import hicache

        hicache.apply()
    except (ConfigError, ImportError, AttributeError, RuntimeError) as error:  # the last: nowhere to cache kernels
        raise SystemExit(f"kvflow: cannot prepare the hierarchical cache for the CPU engine: {error}") from error
    # Copy threads need the interpreter only for microseconds, but 5 ms (the default) pass before they get it.
    sys.setswitchinterval(5e-4)
    _installed = True
