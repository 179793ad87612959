"""What SGLang's hierarchical cache needs to run without a GPU: plain host memory, a copy function, copy streams."""

from __future__ import annotations

import inspect
import os
from typing import Any

from kvflow.patches.cpu import publish, streams, targets
from kvflow.patches.cpu.attention import decode_rows, extend_new_rows
from kvflow.patches.cpu.decoding import on_one_core
from kvflow.patches.cpu.idle import let_copies_run
from kvflow.patches.cpu.link import Direction, LinkSettings
from kvflow.patches.cpu.products import apply_linear, compute_lm_head
from kvflow.patches.cpu.transfer import transfer_kv_direct

HOST_RESERVE_BYTES = 1 << 28


def apply() -> None:
    """Patch this process; call it in a scheduler process, before SGLang applies its hooks.

    Raises:
        ConfigError: the link settings in the environment are not numbers.
        ImportError: this SGLang lacks one of the patched modules.
    """
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import l2_transfer
    from sglang.srt.mem_cache.pool_host import base, mha
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    streams.configure(LinkSettings.from_environment(os.environ))
    publish.start(streams.link_statistics)
    HookRegistry.register(targets.PIN_MEMORY.target, _without_pinning(base.HostKVCache), HookType.BEFORE)
    HookRegistry.register(targets.STREAM_DIRECTIONS.target, _name_directions, HookType.AFTER)
    HookRegistry.register(targets.EXTEND_ATTENTION.target, extend_new_rows, HookType.AROUND)
    HookRegistry.register(targets.DECODE_ATTENTION.target, decode_rows, HookType.AROUND)
    HookRegistry.register(targets.DECODE.target, on_one_core, HookType.AROUND)
    HookRegistry.register(targets.IDLE.target, let_copies_run, HookType.AFTER)
    HookRegistry.register(targets.LINEAR.target, apply_linear, HookType.AROUND)
    HookRegistry.register(targets.LM_HEAD.target, compute_lm_head, HookType.AROUND)
    # Attributes, not hooks: the registry wraps functions that exist, and these do not, or are no functions.
    mha.transfer_kv_direct = transfer_kv_direct
    l2_transfer.device_module = streams
    l2_transfer._timing_events_supported.cache_clear()
    cache_controller.device_module = streams
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = HOST_RESERVE_BYTES


def _without_pinning(host_pool: type) -> Any:
    """Make the hook that turns page-locking off, however the caller passes the argument."""
    signature = inspect.signature(host_pool.__init__)

    def without_pinning(*arguments: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = signature.bind(*arguments, **options)
        bound.arguments["pin_memory"] = False
        return bound.args, bound.kwargs

    return without_pinning


def _name_directions(_result: None, engine: Any, *_arguments: Any, **_options: Any) -> None:
    engine.host_to_device_stream.assign(Direction.HOST_TO_DEVICE)
    engine.device_to_host_stream.assign(Direction.DEVICE_TO_HOST)
