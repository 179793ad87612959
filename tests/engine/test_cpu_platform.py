"""Choosing the CPU engine, its defaults, what it refuses, and its cheaper attention."""

from __future__ import annotations

import os
import pkgutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kvflow
from kvflow.errors import ServerUnavailableError, UnsupportedEngineError
from kvflow.patches import cpu
from kvflow.patches.cpu.attention import attend, decode_rows, extend_new_rows
from kvflow.patches.cpu.decoding import on_one_core
from kvflow.patches.cpu.environment import bind_list, cpu_engine_environment, server_environment
from kvflow.patches.cpu.launch import HOST, PORTS, free_port, log_tail, start_server
from kvflow.patches.cpu.model import build_model

pytestmark = [pytest.mark.engine, pytest.mark.beside]


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("on", True), ("True", True), ("0", False), ("", False)])
def test_the_engine_is_chosen_by_one_variable(monkeypatch: pytest.MonkeyPatch, value: str, wanted: bool) -> None:
    monkeypatch.setenv(cpu.ENGINE_VARIABLE, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    platform = "kvflow.patches.cpu.platform:KvflowCpuPlatform"
    assert cpu.wanted() is wanted
    assert cpu.activate() == (platform if wanted else None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("" if wanted else "0")


@pytest.mark.parametrize(
    ("variable", "value"), [("KVFLOW_CPU_LINK_BYTES_PER_S", "fast"), ("SGLANG_USE_CPU_ENGINE", "1")]
)
def test_a_contradiction_ends_the_import_of_sglang_with_one_readable_line(variable: str, value: str) -> None:
    environment = os.environ | {cpu.ENGINE_VARIABLE: "1", variable: value}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import sglang"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("kvflow: cannot start the CPU engine")
    assert variable in last


def arguments(model: Path, **changed: Any) -> SimpleNamespace:
    defaults: dict[str, Any] = {
        "model_path": str(model),
        "trust_remote_code": False,
        "revision": None,
        "device": "cpu",
        "attention_backend": "intel_amx",
        "sampling_backend": None,
        "grammar_backend": None,
        "dtype": "auto",
        "max_total_tokens": None,
        "chunked_prefill_size": None,
        "hicache_io_backend": "kernel",
        "hicache_mem_layout": "page_first",
    }
    return SimpleNamespace(**(defaults | changed))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("platform") / "model"
    return build_model(folder, hidden_size=32, intermediate_size=48, layers=1, heads=2, kv_heads=1)


@pytest.fixture(scope="module")
def platform() -> Any:
    from kvflow.patches.cpu.platform import KvflowCpuPlatform

    return KvflowCpuPlatform()


def test_defaults_need_no_flags_and_explicit_sizes_stay(platform: Any, model: Path) -> None:
    settings = arguments(model, max_total_tokens=4096)
    platform.apply_server_args_defaults(settings)
    assert settings.attention_backend == "torch_native"
    assert (settings.hicache_io_backend, settings.hicache_mem_layout) == ("direct", "layer_first")
    assert (settings.sampling_backend, settings.grammar_backend, settings.dtype) == ("pytorch", "none", "float32")
    assert settings.max_total_tokens == 4096
    assert settings.chunked_prefill_size > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "cuda"),
        ("hicache_io_backend", "kernel_ascend"),
        ("hicache_mem_layout", "page_head"),
        ("kv_cache_dtype", "fp8_e4m3"),
        ("speculative_algorithm", "EAGLE"),
        ("quantization", "fp8"),
        ("attention_backend", "triton"),
        ("enable_lora", True),
        ("disaggregation_mode", "prefill"),
        ("hicache_storage_backend", "mooncake"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_their_flag(
    platform: Any, model: Path, field: str, value: object
) -> None:
    with pytest.raises(UnsupportedEngineError, match=f"--{field.replace('_', '-')} {value}"):
        platform.apply_server_args_defaults(arguments(model, **{field: value}))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, None),
        ({"layer_types": ["full_attention"] * 2}, None),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, None),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_models_without_full_attention_are_recognised(config: dict[str, Any], problem: str | None) -> None:
    from kvflow.patches.cpu.platform import model_problem

    found = model_problem(SimpleNamespace(**config))
    assert found is None if problem is None else problem in str(found)


def test_every_touched_place_exists_in_this_sglang() -> None:
    absent = {"cpu.transfer"}  # exists with a GPU only; that is the point
    for target in cpu.TARGETS:
        assert target.why
        if target.name not in absent:
            pkgutil.resolve_name(target.target)


@pytest.mark.parametrize("new", [1, 16, 48])
def test_new_rows_get_the_numbers_of_the_stock_backend(new: int) -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    torch.manual_seed(0)
    lengths = torch.tensor([48, new + 7])
    fresh = torch.tensor([new, new])
    slots = torch.randperm(256)[: int(lengths.max()) * 2].reshape(2, -1)
    query = torch.randn(2 * new, 4, 8)
    keys, values = torch.randn(256, 2, 8), torch.randn(256, 2, 8)
    backend = SimpleNamespace(_make_sliding_window_mask=None)
    stock: Any = TorchNativeAttnBackend._run_sdpa_forward_extend
    ours: Any = extend_new_rows
    call: Any = (query, torch.empty_like(query), keys, values, slots, torch.tensor([1, 0]), lengths)
    options = {"scaling": 0.3, "enable_gqa": True, "causal": True}
    expected = stock(backend, *call, lengths - fresh, fresh, None, **options).clone()
    found = ours(stock, backend, *call, lengths - fresh, fresh, None, **options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_decoding_gets_the_numbers_of_the_stock_backend(kv_heads: int) -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    torch.manual_seed(2)
    lengths, rows = torch.tensor([48, 1, 17]), torch.tensor([2, 0, 1])
    slots = torch.randperm(256)[:144].reshape(3, -1)
    query, keys, values = torch.randn(3, 4, 8), torch.randn(256, kv_heads, 8), torch.randn(256, kv_heads, 8)
    stock: Any = TorchNativeAttnBackend._run_sdpa_forward_decode
    ours: Any = decode_rows
    call: Any = (query, torch.empty_like(query), keys, values, slots, rows, lengths, None)
    options = {"scaling": 0.3, "enable_gqa": kv_heads != 4, "causal": False}
    expected = stock(None, *call, **options).clone()
    torch.testing.assert_close(ours(None, None, *call, **options), expected, rtol=1e-5, atol=1e-6)


def test_a_sequence_decodes_to_the_same_numbers_whatever_else_is_in_the_batch() -> None:
    torch.manual_seed(3)
    slots, keys, values = torch.randperm(256)[:144].reshape(3, -1), torch.randn(256, 2, 8), torch.randn(256, 2, 8)
    query, rows, lengths = torch.randn(3, 4, 8), torch.tensor([2, 0, 1]), torch.tensor([48, 5, 17])
    ours: Any = decode_rows
    together = ours(None, None, query, torch.empty_like(query), keys, values, slots, rows, lengths)
    for own in range(3):
        only = slice(own, own + 1)
        alone = torch.empty_like(query[only])
        ours(None, None, query[only], alone, keys, values, slots, rows[only], lengths[only])
        assert torch.equal(alone, together[only])


def test_decoding_takes_one_core_and_gives_the_others_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert on_one_core(torch.get_num_threads) == 1
        with pytest.raises(ZeroDivisionError):
            on_one_core(lambda: 1 / 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_prefix_split_does_not_change_attention() -> None:
    torch.manual_seed(1)
    query, keys, values = torch.randn(64, 2, 8), torch.randn(512, 1, 8), torch.randn(512, 1, 8)
    whole = attend(query, keys, values, [(0, 64)], scale=None, grouped=True)
    tail = attend(query[40:], keys, values, [(40, 64)], scale=None, grouped=True)
    torch.testing.assert_close(whole[40:], tail, rtol=1e-5, atol=1e-6)
    parts = torch.cat((query[3:4], query[20:30], query[50:60]))
    scattered = attend(parts, keys, values, [(3, 4), (20, 30), (50, 60)], scale=None, grouped=True)
    wanted = torch.cat((whole[3:4], whole[20:30], whole[50:60]))
    torch.testing.assert_close(scattered, wanted, rtol=1e-5, atol=1e-6)


def test_anything_but_plain_causal_attention_stays_with_sglang() -> None:
    def stock(*_arguments: Any, **options: Any) -> str:
        return f"stock, window {options['sliding_window_size']}"

    backend = SimpleNamespace(use_sliding_window_kv_pool=False)
    extend: Any = extend_new_rows
    assert extend(stock, backend, *[None] * 9, causal=True, sliding_window_size=8) == "stock, window 8"
    decode: Any = decode_rows
    assert decode(stock, backend, *[None] * 7, sliding_window_size=8) == "stock, window 8"
    half = torch.empty(1, 1, 8, dtype=torch.bfloat16)
    assert decode(stock, backend, *[half] * 7, sliding_window_size=None) == "stock, window None"


def test_layers_with_a_window_read_from_their_own_pool() -> None:
    def stock(*arguments: Any, **_: Any) -> tuple[Any, Any]:
        return arguments[5], arguments[6]

    mapping = torch.tensor([0, 7, 8, 9, 5, 6])
    pool = SimpleNamespace(translate_loc_from_full_to_swa=lambda slots: mapping[slots])
    backend = SimpleNamespace(use_sliding_window_kv_pool=True, token_to_kv_pool=pool)
    table = torch.tensor([[1, 2], [3, 4], [5, 0]], dtype=torch.int32)
    rest = [table, torch.tensor([2, 0]), None, None, None, None]
    extend: Any = extend_new_rows
    slots, rows = extend(stock, backend, *[None] * 4, *rest[:5], causal=True, sliding_window_size=8)
    assert slots[rows].tolist() == [[6, 0], [7, 8]]
    decode: Any = decode_rows
    slots, rows = decode(stock, backend, *[None] * 4, *rest[:3], sliding_window_size=8)
    assert slots[rows].tolist() == [[6, 0], [7, 8]]


def test_cores_are_shared_among_ranks() -> None:
    assert bind_list([0, 1], 2) == "0|1"
    assert bind_list([0, 1, 2, 3, 4], 2) == "0,1|2,3"
    assert bind_list([3, 5], 3) == "3|5|3"


def test_the_environment_of_an_engine_keeps_what_its_caller_set() -> None:
    environment = cpu_engine_environment({"OMP_NUM_THREADS": "7", "HOME": "/h"}, ranks=2)
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["HOME"] == "/h"
    assert environment[cpu.ENGINE_VARIABLE] == "1"
    assert environment["SGLANG_CPU_OMP_THREADS_BIND"].count("|") == 1


_BITS = """
import torch

import kvflow
from kvflow.patches.cpu.attention import extend_new_rows
from kvflow.patches.cpu.products import apply_linear

weights, rows = torch.randn(320, 256), torch.randn(2048, 256)

def product(count):
    return apply_linear(lambda _, layer, some: torch.nn.functional.linear(some, layer), None, weights, rows[:count])

whole = product(2048)
for count in (*range(1, 20), 100, 1000):
    assert torch.equal(product(count), whole[:count]), count
torch.set_num_threads(1)
assert torch.equal(product(7), whole[:7])
torch.set_num_threads(2)

query, keys, values = torch.randn(1100, 4, 64), torch.randn(1200, 2, 64), torch.randn(1200, 2, 64)
slots, one = torch.randperm(1200)[None], torch.zeros(1, dtype=torch.int64)

def attended(start, end):
    new = query[start:end]
    extents = torch.tensor([end]), torch.tensor([start]), torch.tensor([end - start])
    options = dict(scaling=0.125, enable_gqa=True, causal=True)
    return extend_new_rows(None, None, new, torch.empty_like(new), keys, values, slots, one, *extents, **options)

for cut in (1, 33, 64, 100, 256, 300, 512, 700, 768, 1099):
    assert torch.equal(torch.cat([attended(0, cut), attended(cut, 1100)]), attended(0, 1100)), cut
"""


def test_a_server_on_a_gpu_finds_the_packages_its_caller_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/kit/site")
    monkeypatch.setenv("SGLANG_HOST_IP", "127.0.0.1")
    environment = server_environment(device="cuda", python_path=["/plugin"])
    assert environment["PYTHONPATH"] == f"/plugin{os.pathsep}/kit/site"
    assert environment["SGLANG_HOST_IP"] == "127.0.0.1"
    environment = server_environment()
    assert "PYTHONPATH" not in environment
    assert "SGLANG_HOST_IP" not in environment


@pytest.mark.parametrize(("model", "offline"), [(".", "1"), ("Qwen/Qwen3-8B", None)])
def test_only_a_model_that_has_to_be_fetched_is_looked_up(
    model: str, offline: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    seen: list[dict[str, str]] = []

    def spawn(*arguments: Any, env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
        seen.append(env)
        return subprocess.Popen(["true"], start_new_session=True)

    with start_server(model, log_path=tmp_path / "log", spawn=spawn):
        assert seen[0].get("HF_HUB_OFFLINE") == offline


def test_a_server_runs_the_kvflow_of_its_caller_though_another_one_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = str(Path(kvflow.__file__).resolve().parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/kit/site", root, ""]))
    assert server_environment(python_path=["/plugin"])["PYTHONPATH"] == f"/plugin{os.pathsep}{root}"


def test_operators_of_torchvision_are_left_alone_where_torch_has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("declared twice they would abort the process")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.library, "Library", refuse)
    monkeypatch.setattr(torch, "ops", SimpleNamespace(torchvision=SimpleNamespace()))
    cpu.declare_torchvision_ops()


def test_a_prompt_has_the_same_bits_whatever_is_beside_it_and_wherever_it_is_divided() -> None:
    subprocess.run([sys.executable, "-c", _BITS], env=cpu_engine_environment(os.environ), check=True)


def test_a_server_gets_a_free_port_that_no_rank_is_given_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as given:
        given.bind((HOST, 0))
        assert given.getsockname()[1] > PORTS[-1]
    with socket.socket() as taken:
        taken.bind((HOST, free_port()))
        both = range(taken.getsockname()[1], taken.getsockname()[1] + 2)
        monkeypatch.setattr("kvflow.patches.cpu.launch.PORTS", both)
        assert free_port() == both[1]
        monkeypatch.setattr("kvflow.patches.cpu.launch.PORTS", both[:1])
        with pytest.raises(ServerUnavailableError, match=f"no free port between {both[0]} and {both[0]}"):
            free_port()


def test_the_end_of_a_log_is_shown_without_the_noise_of_native_libraries(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nnanobind: leaked 4 types!\n - leaked type x\nthree\n")
    assert log_tail(log, 2) == "two\nthree"
    assert log_tail(tmp_path / "missing") == ""
