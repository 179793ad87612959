"""What the guard sees of requests that wait."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache import common
from sglang.srt.plugins import hook_registry

from kvflow.engine.guard import MemoryView
from kvflow.patches import catalog
from kvflow.patches.seams import resolve
from tests.engine.model_free import Requests

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def test_the_shadow_keeps_what_sglang_refreshes_for_requests_that_wait(
    publish: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(0)
    monkeypatch.setenv("KVFLOW_GUARD__ENABLED", "true")
    requests = Requests("kvflow", device_tokens=1024, page_tokens=64)
    seam = next(seam for seam in catalog.SEAMS if seam.target.endswith("touch_waiting_prefix"))
    touch = hook_registry._wrap_fn(
        common.touch_waiting_prefix, resolve(seam.body.replace(":", ".")), hook_registry.HookType(seam.kind.value)
    )
    guard = requests.cache.trust._guard
    waiting = [requests.ask(str(name), [name] * 256, 1) for name in range(4)]
    digests = [requests.cache.watch.digests(req) for req in waiting]
    view = MemoryView(3 * 256, 0, 0, 1 << 30)
    guard._looked_up.clear()  # what asking alone has told
    for name in (0, 1, 2, None, 1, 3):
        if name is None:
            touch(waiting[0], requests.cache)
            continue
        guard.started(name, digests[name], device_hit=0, host_hit=0, memory=view)
        guard.ended(name, digests[name], memory=view)
    assert guard._device.prefix(digests[0]) == 4
    assert guard._device.prefix(digests[2]) == 0


@pytest.mark.parametrize(("sizes", "tokens"), [({"logical_size": 400}, 400), ({}, 100)])
def test_what_ranks_that_share_a_context_hold_on_the_host_adds_up(
    make_tree: Callable[..., Any], sizes: dict[str, int], tokens: int
) -> None:
    cache = make_tree("kvflow").cache
    cache.cache_controller = SimpleNamespace(mem_pool_host=SimpleNamespace(size=100, **sizes))
    assert cache.watch.memory().host_tokens == tokens
