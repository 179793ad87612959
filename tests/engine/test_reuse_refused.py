"""What reuse is refused for, by name: SGLang's own rotary embeddings and KV pools, servers, and requests."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kvflow.errors import ReuseUnsupportedError
from kvflow.patches import refusals, reuse_hooks, switch
from kvflow.patches.kv_pool import Pool, rotary_of
from kvflow.patches.seams import Role

HEAD_DIM, POSITIONS, LAYERS = 64, 512, 3
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 128
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
KNOWN: dict[str, dict[str, Any]] = {
    "NeoX": {},
    "GPT-J": {"is_neox_style": False},
    "half of each head": {"partial_rotary_factor": 0.5},
    "Llama 3": {"rope_scaling": LLAMA3},
    "YaRN": {"rope_scaling": YARN},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


def embedding(**options: Any) -> torch.nn.Module:
    """One of SGLang's, never one that another test has."""
    from sglang.srt.layers.rotary_embedding import factory, get_rope

    factory._ROPE_DICT.clear()
    return get_rope(HEAD_DIM, HEAD_DIM, POSITIONS, 10_000, dtype=torch.float32, **options)


def runner(*embeddings: torch.nn.Module) -> Any:
    """A model runner whose layers have these."""
    model = torch.nn.Module()
    for number, each in enumerate(embeddings):
        layer = torch.nn.Module()
        layer.rotary_emb = each
        model.add_module(f"layer{number}", layer)
    pool = SimpleNamespace(layer_num=LAYERS, head_dim=HEAD_DIM)
    return SimpleNamespace(model=model, token_to_kv_pool=pool, dtype=torch.float32)


@pytest.mark.parametrize("name", KNOWN)
def test_embeddings_of_sglang_are_turned_as_it_turns_them(name: str) -> None:
    one = embedding(**KNOWN[name])
    rotary = rotary_of(runner(*[one] * LAYERS))
    assert rotary.neox == (name != "GPT-J")
    assert rotary.positions >= POSITIONS


def test_an_embedding_whose_table_depends_on_the_prompt_is_refused() -> None:
    with pytest.raises(ReuseUnsupportedError, match="rotary embedding DynamicNTK"):
        rotary_of(runner(*[embedding(rope_scaling=DYNAMIC)] * LAYERS))


@pytest.mark.parametrize("count", [0, 1, LAYERS])
def test_layers_have_to_share_one_embedding(count: int) -> None:
    with pytest.raises(ReuseUnsupportedError, match="do not share one rotary embedding"):
        rotary_of(runner(*[embedding() for _ in range(count)]))


def test_an_embedding_that_is_given_a_part_of_each_key_is_refused() -> None:
    one = runner(*[embedding()] * LAYERS)
    one.token_to_kv_pool.head_dim = 2 * HEAD_DIM  # as xLLM's with partial RoPE: the part is the beginning of each half
    with pytest.raises(ReuseUnsupportedError, match="64 of the 128 dimensions of a key"):
        rotary_of(one)


@pytest.mark.parametrize("name", ["HunYuanMoEV1ForCausalLM", "HunYuanDenseV1ForCausalLM"])
def test_a_model_that_normalises_keys_after_it_is_refused(name: str) -> None:
    from sglang.srt.models import hunyuan

    one = runner(*[embedding()] * LAYERS)
    one.model.__class__ = type("Loaded", (getattr(hunyuan, name),), {"__init__": torch.nn.Module.__init__})
    with pytest.raises(ReuseUnsupportedError, match="normalises keys after"):
        rotary_of(one)


def test_an_embedding_that_does_something_else_by_a_known_name_is_refused() -> None:
    class RotaryEmbedding(torch.nn.Module):
        def __init__(self, true: Any) -> None:
            super().__init__()
            self.true = true
            self.cos_sin_cache, self.head_size, self.is_neox_style = true.cos_sin_cache, HEAD_DIM, True

        def forward(self, positions: torch.Tensor, query: Any, key: Any) -> Any:
            return self.true(positions // 2, query, key)

    with pytest.raises(ReuseUnsupportedError, match="keys turned by us differ"):
        rotary_of(runner(*[RotaryEmbedding(embedding())] * LAYERS))


@pytest.mark.parametrize("window", [None, -1, 0, 128])
def test_attention_over_a_sliding_window_is_refused(window: int | None) -> None:
    from sglang.srt.layers.radix_attention import RadixAttention

    one = runner(*[embedding()] * LAYERS)
    one.model.attn = RadixAttention(2, HEAD_DIM, 1.0, 2, 0, sliding_window_size=window)  # type: ignore[arg-type]
    if window != 128:
        assert rotary_of(one).positions >= POSITIONS
        return
    with pytest.raises(ReuseUnsupportedError, match="sliding windows"):
        rotary_of(one)


def test_a_layout_that_is_declared_wrongly_is_refused() -> None:
    one = embedding()
    turned = one.forward

    def as_before(*arguments: Any) -> Any:
        one.is_neox_style = True
        try:
            return turned(*arguments)
        finally:
            one.is_neox_style = False

    one.is_neox_style, one.forward = False, as_before
    with pytest.raises(ReuseUnsupportedError, match="keys turned by us differ"):
        rotary_of(runner(*[one] * LAYERS))


def pool_of(**changed: Any) -> Any:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pool = MHATokenToKVPool(64, 4, torch.float32, 1, 4, 1, "cpu", False)
    for name, value in changed.items():
        setattr(pool, name, value)
    return SimpleNamespace(token_to_kv_pool=pool, req_to_token_pool=None)


def test_pools_other_than_plain_ones_are_refused() -> None:
    assert Pool(pool_of()).layers == 1
    for changed, named in (
        ({"kv_cache_layout": "hnd"}, "KV layout hnd"),
        ({"store_dtype": torch.uint8, "dtype": torch.float8_e5m2}, "KV of type torch.float8_e5m2"),
    ):
        with pytest.raises(ReuseUnsupportedError, match=named):
            Pool(pool_of(**changed))

    class MLATokenToKVPool:
        pass

    with pytest.raises(ReuseUnsupportedError, match="MLATokenToKVPool"):
        Pool(SimpleNamespace(token_to_kv_pool=MLATokenToKVPool()))


SERVER = {
    "speculative_algorithm": None,
    "lora_paths": None,
    "enable_lora": False,
    "enable_return_hidden_states": False,
    "enable_return_routed_experts": False,
}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"speculative_algorithm": "EAGLE"}, "speculative decoding"),
        ({"enable_lora": True}, "LoRA"),
        ({"lora_paths": ["a"]}, "LoRA"),
        ({"enable_return_hidden_states": True}, "hidden-states"),
        ({"return_hidden_states_mode": "full"}, "--return-hidden-states-mode"),
        ({"enable_return_aux_hidden_states": True}, "aux-hidden-states"),
        ({"enable_return_routed_experts": True}, "routed-experts"),
        ({"enable_watermark": True}, "--enable-watermark"),
        ({"dcp_size": 2}, "--dcp-size"),  # its slots are of all ranks, and a rank's pool has only its own
        ({"attn_cp_size": 2}, "--attn-cp-size"),
        ({"enable_prefill_cp": True}, "--enable-prefill-cp"),
        ({"moe_a2a_backend": "deepep"}, "--moe-a2a-backend"),  # what ranks tell each other is of the whole batch
        ({"moe_dense_tp_size": 1}, "--moe-dense-tp-size"),
        ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm"),
    ],
)
def test_servers_are_refused_by_name(changed: dict[str, Any], named: str) -> None:
    refusals.of_server(SimpleNamespace(**SERVER))
    refusals.of_server(SimpleNamespace(**SERVER, dcp_size=1, attn_cp_size=1, moe_a2a_backend="none"))
    with pytest.raises(ReuseUnsupportedError, match=named):
        refusals.of_server(SimpleNamespace(**SERVER | changed))


REQUEST = {
    "return_logprob": True,
    "logprob_start_len": -1,
    "origin_input_ids": [1] * 8,
    "return_hidden_states": False,
    "multimodal_inputs": None,
    "input_embeds": None,
    "positional_embed_overrides": None,
    "session": None,
}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, ""),
        ({"logprob_start_len": 8}, ""),
        ({"logprob_start_len": 0}, "logprobs of the prompt"),
        ({"logprob_start_len": 0, "return_logprob": False}, ""),
        ({"return_hidden_states": True}, "hidden states"),
        ({"multimodal_inputs": object()}, "multimodal inputs"),
        ({"input_embeds": [[0.0]]}, "embeddings as input"),
        ({"positional_embed_overrides": object()}, "embeddings as input"),
        ({"session": object()}, "a session, which would keep it"),
        ({"skip_radix_cache_insert": True}, "kept from the prefix cache, as in beam search"),
    ],
)
def test_requests_are_computed_for_a_reason_that_has_a_name(changed: dict[str, Any], named: str) -> None:
    assert refusals.of_request(SimpleNamespace(**REQUEST | changed)) == named


def reference(keys: Any, values: Any, _: Any, positions: Any, cache: Any, pages: Any, *rest: Any, **more: Any) -> None:
    """What FlashInfer's kernel does where a page is a token."""
    for buffer, new in zip(cache, (keys, values), strict=True):
        buffer[pages.long(), 0] = new


def failing(*arguments: Any, **more: Any) -> None:
    raise RuntimeError("no nvcc")


@pytest.mark.parametrize(
    ("dim", "kernel", "used"), [(64, reference, True), (64, failing, False), (64, lambda *a, **b: None, False)]
)
def test_the_kernel_that_writes_is_tried_before_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, dim: int, kernel: Any, used: bool
) -> None:
    pool = pool_with(monkeypatch, kernel, dim)
    assert pool._kernel_writes() is used
    assert all(bool((layer == 0).all()) for layer in (*pool._keys, *pool._values)), "all is left as it was"


def test_keys_of_a_length_without_a_kernel_are_written_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool_with(monkeypatch, failing, 80)._kernel_writes() is False


def pool_with(monkeypatch: pytest.MonkeyPatch, kernel: Any, dim: int) -> Pool:
    page: Any = ModuleType("flashinfer.page")
    page.append_paged_kv_cache = kernel
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.page", page)
    pool = Pool(pool_of())
    pool._keys, pool._values = ([torch.zeros(8, 2, dim) for _ in range(LAYERS)] for _ in range(2))
    return pool


@pytest.mark.parametrize("strict", [False, True])
def test_a_server_starts_without_reuse_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    monkeypatch.setenv("KVFLOW_REUSE__MODE", "rotate")
    monkeypatch.setenv("KVFLOW_STRICT", str(strict))
    monkeypatch.setattr(reuse_hooks, "Splicer", failing)
    monkeypatch.setitem(switch.books, Role.SCHEDULER, SimpleNamespace(holds=lambda feature: True))
    scheduler = SimpleNamespace(tree_cache=SimpleNamespace(splicer=None))
    if strict:
        with pytest.raises(RuntimeError, match="no nvcc"):
            reuse_hooks.start(scheduler)
    else:
        assert reuse_hooks.start(scheduler) == "RuntimeError: no nvcc"
