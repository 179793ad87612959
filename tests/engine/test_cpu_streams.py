"""Copy streams: order, asynchrony, waiting, failures, and the data that arrives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kvflow.errors import EngineError
from kvflow.patches.cpu import streams
from kvflow.patches.cpu.link import Direction, Link, LinkSettings
from kvflow.patches.cpu.transfer import transfer_kv_direct

pytestmark = pytest.mark.engine

PAGE = 16


@pytest.fixture(autouse=True)
def fresh_links(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(streams, "links", {direction: Link() for direction in Direction})
    yield
    for link in streams.links.values():
        link.release()


def make_stream(direction: Direction = Direction.HOST_TO_DEVICE) -> streams.Stream:
    stream = streams.Stream()
    stream.assign(direction)
    return stream


def rows(pages: list[int]) -> torch.Tensor:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def wait_for(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_arrive_where_they_belong_and_nothing_else_changes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    host = [torch.randn(40 * PAGE, 2, 8).to(dtype) for _ in range(2)]
    device = [torch.zeros(20 * PAGE, 2, 8, dtype=dtype) for _ in range(2)]
    expected = [tensor.clone() for tensor in device]
    stream, done = make_stream(), streams.Event()
    with streams.stream(stream):
        # One load in two pieces, as after a node was split; each piece in its own order.
        for source, target in (([31, 2, 7], [0, 19, 5]), ([8, 30], [6, 1])):
            transfer_kv_direct(host, device, rows(source), rows(target), PAGE)
        done.record()
    done.synchronize()
    for layer in range(2):
        expected[layer][rows([0, 19, 5, 6, 1])] = host[layer][rows([31, 2, 7, 8, 30])]
        assert torch.equal(device[layer], expected[layer])
    moved = streams.link_statistics().host_to_device
    assert (moved.copies, moved.copied_bytes) == (2, 5 * PAGE * 2 * 8 * 2 * device[0].itemsize)


def test_a_backup_and_a_load_over_held_links_end_up_right_after_release() -> None:
    device = [torch.arange(8 * PAGE, dtype=torch.float32).reshape(-1, 1, 1)]
    host = [torch.zeros(8 * PAGE, 1, 1)]
    back, forth = make_stream(Direction.DEVICE_TO_HOST), make_stream()
    streams.links[Direction.DEVICE_TO_HOST].hold()
    with streams.stream(back):
        transfer_kv_direct(device, host, rows([2]), rows([5]), PAGE)
        backed_up = streams.Event()
        backed_up.record()
    with streams.stream(forth):
        backed_up.wait(forth)
        transfer_kv_direct(host, device, rows([5]), rows([0]), PAGE)
        loaded = streams.Event()
        loaded.record()
    time.sleep(0.02)
    assert not backed_up.query()
    assert not loaded.query()
    assert torch.equal(device[0][: 2 * PAGE], torch.arange(2 * PAGE, dtype=torch.float32).reshape(-1, 1, 1))
    streams.links[Direction.DEVICE_TO_HOST].release()
    loaded.synchronize()
    assert torch.equal(device[0][rows([0])], device[0][rows([2])])


def test_submitting_returns_before_the_copy_is_done_and_layers_finish_in_order() -> None:
    streams.configure(LinkSettings(bytes_per_s=2e5))
    layers = [torch.randn(4 * PAGE, 1, 64) for _ in range(4)]
    targets = [torch.zeros_like(layer) for layer in layers]
    stream, events = make_stream(), [streams.Event() for _ in layers]
    began_s = time.perf_counter()
    with streams.stream(stream):
        for source, target, event in zip(layers, targets, events, strict=True):
            transfer_kv_direct([source], [target], rows([0, 1, 2, 3]), rows([0, 1, 2, 3]), PAGE)
            event.record()
    assert time.perf_counter() - began_s < 0.1
    assert [event.query() for event in events] == [False] * 4
    events[1].synchronize()
    assert not events[3].query()
    assert torch.equal(targets[1], layers[1])
    events[3].synchronize()
    expected_s = sum(layer.nbytes for layer in layers) / 2e5
    assert 0.99 * expected_s < time.perf_counter() - began_s < expected_s + 0.5


def test_both_directions_run_at_the_same_time() -> None:
    streams.configure(LinkSettings(bytes_per_s=2e5))
    source, target = torch.randn(8 * PAGE, 1, 64), torch.zeros(8 * PAGE, 1, 64)
    pages = rows(list(range(8)))
    ends = []
    began_s = time.perf_counter()
    for direction in Direction:
        with streams.stream(make_stream(direction)):
            transfer_kv_direct([source], [target.clone()], pages, pages, PAGE)
            event = streams.Event()
            event.record()
            ends.append(event)
    for event in ends:
        event.synchronize()
    assert time.perf_counter() - began_s < 1.5 * source.nbytes / 2e5


def test_waiting_outside_a_copy_stream_blocks_and_is_counted_as_a_stall() -> None:
    streams.configure(LinkSettings(latency_s=0.1))
    tensor = torch.randn(PAGE, 1, 8)
    done = streams.Event()
    with streams.stream(make_stream()):
        transfer_kv_direct([tensor], [tensor.clone()], rows([0]), rows([0]), PAGE)
        done.record()
    began_s = time.perf_counter()
    streams.current_stream().wait_event(done)
    blocked_s = time.perf_counter() - began_s
    assert 0.05 < blocked_s < 1.0
    statistics = streams.link_statistics()
    assert statistics.host_to_device.stalled_s == pytest.approx(blocked_s, abs=0.05)
    assert statistics.device_to_host.stalled_s == 0
    streams.current_stream().wait_event(done)
    assert streams.link_statistics().host_to_device.stalled_s == statistics.host_to_device.stalled_s


def test_a_failed_copy_is_raised_to_whoever_waits_for_it() -> None:
    tensor = torch.zeros(PAGE, 1, 8)
    stream, before, behind = make_stream(), streams.Event(), streams.Event()
    with streams.stream(stream):
        before.record()
        transfer_kv_direct([tensor], [tensor.clone()], rows([9]), rows([0]), PAGE)  # no such page
        behind.record()
    before.synchronize()
    with pytest.raises(EngineError, match="copy between device and host memory failed"):
        behind.synchronize()
    with pytest.raises(EngineError):
        behind.query()
    with pytest.raises(EngineError):
        streams.current_stream().wait_event(behind)


def test_events_behave_as_on_cuda_when_never_recorded_recorded_again_or_timed() -> None:
    event = streams.Event()
    assert event.query()
    event.synchronize()
    streams.configure(LinkSettings(latency_s=0.05))
    tensor = torch.zeros(PAGE, 1, 8)
    start, end, stream = streams.Event(enable_timing=True), streams.Event(enable_timing=True), make_stream()
    with streams.stream(stream):
        start.record()
        transfer_kv_direct([tensor], [tensor.clone()], rows([0]), rows([0]), PAGE)
        end.record()
    with pytest.raises(RuntimeError, match="elapsed_time"):
        start.elapsed_time(end)
    end.synchronize()
    assert 50 <= start.elapsed_time(end) < 500
    streams.links[Direction.HOST_TO_DEVICE].hold()
    with streams.stream(stream):
        end.record()
    assert not end.query()
    streams.links[Direction.HOST_TO_DEVICE].release()
    wait_for(end.query)


def test_foreign_streams_and_events_count_as_done() -> None:
    stream = make_stream()
    stream.wait_stream(torch.cpu.current_stream())
    stream.wait_event(torch.cpu.Event())
    event = streams.Event()
    event.record(torch.cpu.current_stream())
    assert event.query()
    event.wait(torch.cpu.current_stream())
    with streams.stream(torch.cpu.Stream()):
        assert streams.current_stream() is not stream


def test_a_stream_in_use_by_one_thread_does_not_catch_copies_of_another() -> None:
    source, target = torch.ones(PAGE, 1, 8), torch.zeros(PAGE, 1, 8)
    streams.links[Direction.HOST_TO_DEVICE].hold()
    with streams.stream(make_stream()):
        other = threading.Thread(
            target=transfer_kv_direct, args=([source], [target], rows([0]), rows([0]), PAGE), daemon=True
        )
        other.start()
        other.join()
    assert torch.equal(source, target)
    assert streams.link_statistics().host_to_device.copies == 0


class Pool:
    """One tensor for keys and one for values per layer, as far as SGLang's transfer engine looks at a pool."""

    def __init__(self, *, layers: int, tokens: int) -> None:
        self.keys = [torch.randn(tokens, 2, 4) for _ in range(layers)]
        self.values = [torch.randn(tokens, 2, 4) for _ in range(layers)]
        self.layer_num = layers

    def prepare_transfer_indices(self, host: torch.Tensor, device: torch.Tensor, io_backend: str) -> Any:
        return host, device

    def backup_from_device_all_layer_physical(
        self, device_pool: Pool, host: torch.Tensor, device: torch.Tensor, io_backend: str
    ) -> None:
        transfer_kv_direct(device_pool.keys + device_pool.values, self.keys + self.values, device, host, page_size=PAGE)

    def load_to_device_per_layer_physical(
        self, pool: Pool, host: torch.Tensor, device: torch.Tensor, layer: int, io_backend: str, *, is_draft: bool
    ) -> None:
        sources, targets = [self.keys[layer], self.values[layer]], [pool.keys[layer], pool.values[layer]]
        transfer_kv_direct(sources, targets, host, device, page_size=PAGE)


def test_the_transfer_engine_of_sglang_loads_layer_by_layer_and_forwards_wait_for_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import l2_transfer

    from kvflow.patches.cpu import hicache

    monkeypatch.setattr(l2_transfer, "device_module", streams)
    monkeypatch.setattr(cache_controller, "device_module", streams)
    l2_transfer._timing_events_supported.cache_clear()
    layers = 3
    device, host = Pool(layers=layers, tokens=8 * PAGE), Pool(layers=layers, tokens=32 * PAGE)
    there, back, on_host = rows([1, 4, 2]), rows([7, 3, 5]), rows([30, 0, 11])
    keys, values = [[tensor[there].clone() for tensor in kept] for kept in (device.keys, device.values)]
    engine = l2_transfer.L2TransferEngine("direct")
    hicache._name_directions(None, engine)
    counter = cache_controller.LayerDoneCounter(layers)

    backup = engine.submit_device_to_host([l2_transfer.L2Transfer(host, device, on_host, there)])
    backup.finish_event.synchronize()
    streams.configure(LinkSettings(bytes_per_s=1e5))
    counter.set_consumer(counter.update_producer())
    load = engine.submit_host_to_device(
        [l2_transfer.L2Transfer(host, device, on_host, back)],
        transfer_layer_id_max=layers,
        on_layer_done=counter.events[counter.consumer_index].complete,
    )
    assert not load.finish_event.query()
    for layer in range(layers):
        counter.wait_until(layer)  # what get_key_buffer does in a forward pass
        assert torch.equal(device.keys[layer][back], keys[layer])
        assert torch.equal(device.values[layer][back], values[layer])
    load.finish_event.synchronize()

    statistics = streams.link_statistics()
    loaded_bytes = statistics.host_to_device.copied_bytes
    assert loaded_bytes == statistics.device_to_host.copied_bytes == layers * 2 * 3 * PAGE * 2 * 4 * 4
    assert (statistics.device_to_host.copies, statistics.host_to_device.copies) == (1, layers)
    assert 0.8 * loaded_bytes / 1e5 < statistics.host_to_device.stalled_s < loaded_bytes / 1e5 + 0.5
    assert load.timing_enabled
    assert 0.9 < load.start_event.elapsed_time(load.finish_event) / (1e3 * loaded_bytes / 1e5) < 4


def test_ending_drops_queued_copies_and_returns_even_when_held() -> None:
    source, target, behind = torch.ones(PAGE, 1, 8), torch.zeros(PAGE, 1, 8), torch.zeros(PAGE, 1, 8)
    stream = make_stream()
    stream.synchronize()
    streams.links[Direction.HOST_TO_DEVICE].hold()
    with streams.stream(stream):
        transfer_kv_direct([source], [target], rows([0]), rows([0]), PAGE)  # which may have begun
        transfer_kv_direct([source], [behind], rows([0]), rows([0]), PAGE)
    began_s = time.monotonic()
    stream.end()
    assert time.monotonic() - began_s < streams.EXIT_GRACE_S
    assert not behind.any()
    streams.Stream().end()
