"""What batches are timed, on devices that compute while a batch is launched and on those that do so afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from kvflow.patches import timing
from kvflow.policy import ServingCosts

pytestmark = [pytest.mark.engine, pytest.mark.beside]

PREFILL_S, DECODE_S = 0.2, 0.02
COSTS = ServingCosts(prefill_token_s=1e-4, attention_token_s=0.0, prefill_step_s=0.0, decode_step_s=0.01)
COSTS.decode_sequence_s = COSTS.decode_context_token_s = 0.0
NO_SPECULATION = SimpleNamespace(is_none=lambda: True)


class Loop:
    """SGLang's overlapping loop: a batch is launched, and then the result of the one before is taken over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
        self.timing = timing.Timing(COSTS)
        self.cache = SimpleNamespace(timing=self.timing, splicer=None)
        self.scheduler = SimpleNamespace(tree_cache=self.cache)
        self.now_s = self._free_s = 0.0
        self._device = device
        self._last: tuple[Any, float] | None = None
        self._count = 0
        monkeypatch.setattr(timing.time, "monotonic", lambda: self.now_s)

    def run(self, mode: ForwardMode, **more: Any) -> None:
        self._count += 1
        batch: dict[str, Any] = {
            "forward_mode": mode,
            "device": self._device,
            "spec_algorithm": NO_SPECULATION,
            "hicache_consumer_index": -1,
            "reqs": [SimpleNamespace(rid="r")],
            "prefix_lens": [0],
            "extend_lens": [1000],
            "seq_lens_cpu": torch.tensor([1000]),
            "forward_iter": self._count,
            "launch_ts": self.now_s,
        }
        launched = SimpleNamespace(**batch | more)
        takes_s = DECODE_S if mode == ForwardMode.DECODE else PREFILL_S
        self._free_s = max(self._free_s, self.now_s) + takes_s
        if self._device == "cpu":
            self.now_s = self._free_s
        assert timing.launched("result", self.scheduler, launched) == "result"
        self.idle()
        self._last = launched, self._free_s

    def idle(self) -> None:
        if self._last is not None:
            batch, done_s = self._last
            self.now_s = max(self.now_s, done_s)
            timing.processed(None, self.scheduler, batch)
            self._last = None


@pytest.fixture(params=["cpu", "cuda"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch, request.param)


def test_every_batch_is_charged_its_own_time(loop: Loop) -> None:
    for _ in range(20):
        loop.run(ForwardMode.EXTEND)
        for _ in range(10):
            loop.run(ForwardMode.DECODE)
        loop.idle()
        loop.now_s += 5.0
    assert loop.timing.speed.prefill_factor == pytest.approx(PREFILL_S / 0.1)
    assert loop.timing.speed.decode_factor == pytest.approx(DECODE_S / 0.01)


@pytest.mark.parametrize(
    "more",
    [
        {"hicache_consumer_index": 1},
        {"spec_algorithm": SimpleNamespace(is_none=lambda: False)},
        {"reqs": [SimpleNamespace(rid="HEALTH_CHECK_1")]},
        {"mode": ForwardMode.MIXED},
        {"mode": ForwardMode.SPLIT_PREFILL},
        {"mode": ForwardMode.DLLM_EXTEND},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_does_more_than_compute_is_left_out(loop: Loop, more: dict[str, Any]) -> None:
    for _ in range(50):
        loop.run(**{"mode": ForwardMode.EXTEND} | more)
    loop.idle()
    assert loop.timing.speed.prefill_factor is None
    assert not loop.timing._under_way


def test_prefill_batches_that_may_reuse_texts_are_left_out_and_decode_steps_are_not(loop: Loop) -> None:
    loop.cache.splicer = object()
    for _ in range(50):
        loop.run(ForwardMode.EXTEND)
        loop.run(ForwardMode.DECODE)
        loop.idle()
    assert loop.timing.speed.prefill_factor is None
    assert loop.timing.speed.decode_factor == pytest.approx(DECODE_S / 0.01)


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_nothing_is_timed_where_batches_share_the_device(loop: Loop, mode: ForwardMode) -> None:
    loop.scheduler.enable_pdmux = True
    for _ in range(50):
        loop.run(mode)
    loop.idle()
    assert (loop.timing.speed.prefill_factor, loop.timing.speed.decode_factor) == (None, None)
    assert not loop.timing._under_way


def test_caches_that_are_not_ours_are_left_alone(loop: Loop) -> None:
    loop.scheduler.tree_cache = SimpleNamespace()
    loop.run(ForwardMode.EXTEND)
    loop.idle()
    loop.scheduler.tree_cache = SimpleNamespace(timing=None, splicer=None)
    loop.run(ForwardMode.EXTEND)
    loop.idle()


def test_that_a_server_which_speculates_measures_loads_only_is_said_once(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        for _ in range(3):
            loop.run(ForwardMode.EXTEND, spec_algorithm=SimpleNamespace(is_none=lambda: False))
    assert caplog.text.count("only loads are") == 1
