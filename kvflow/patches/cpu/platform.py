"""SGLang's platform object for a CPU without kernel libraries, its defaults, and what it refuses."""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities

from kvflow.errors import UnsupportedEngineError

ATTENTION_BACKEND = "torch_native"
IO_BACKEND = "direct"
MEMORY_LAYOUT = "layer_first"
MAX_TOTAL_TOKENS = 65536
CHUNKED_PREFILL_TOKENS = 2048

SUPPORTED: dict[str, tuple[object, ...]] = {
    "device": ("cpu",),
    # SGLang fills in intel_amx for device cpu before it asks the platform.
    "attention_backend": (ATTENTION_BACKEND, None, "intel_amx"),
    "prefill_attention_backend": (ATTENTION_BACKEND, None),
    "decode_attention_backend": (ATTENTION_BACKEND, None),
    "kv_cache_dtype": ("auto", "bf16", "bfloat16"),
    "quantization": (None, "unquant"),
    "speculative_algorithm": (None,),
    "enable_lora": (None, False),
    "enable_lmcache": (False,),
    "enable_hisparse": (False,),
    "enable_unified_memory": (False,),
    "enable_unified_cache_external_linker": (False,),
    "disaggregation_mode": ("null",),
    # The second value of these two is SGLang's default, which cannot be told from an explicit setting.
    "hicache_io_backend": (IO_BACKEND, "kernel"),
    "hicache_mem_layout": (MEMORY_LAYOUT, "page_first"),
    "hicache_storage_backend": (None, "file", "dynamic"),
}
"""Settings that would fail late and obscurely otherwise; the first value is the one to use."""


class KvflowCpuPlatform(CpuSRTPlatform):
    """Any CPU that runs torch: no graph capture, no Triton, torch-native attention, operators and allocators."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities(graph_capture=False)

    def get_device(self, device_id: int | None = 0) -> Any:
        """Name the one device; SGLang asks without an id for the default of ``--device`` and wants a string then."""
        return "cpu" if device_id is None else super().get_device(device_id)

    def get_default_attention_backend(self) -> str:
        """Use torch's own attention."""
        return ATTENTION_BACKEND

    def get_dispatch_key_name(self) -> str:
        """Use the torch implementation of fused operators."""
        return "native"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fill in what runs here; SGLang calls it once, while it resolves the command line.

        ``dtype auto`` becomes float32, where SGLang would pick float16: greedy decoding then does not depend on
        how a batch is cut. Pool and chunk sizes do not depend on the memory of the machine.

        Raises:
            UnsupportedEngineError: a setting or the model cannot run on the CPU engine.
        """
        refuse_unsupported(server_args)
        server_args.attention_backend = ATTENTION_BACKEND
        server_args.hicache_io_backend = IO_BACKEND
        server_args.hicache_mem_layout = MEMORY_LAYOUT
        server_args.disable_cuda_graph = True
        # A warm-up request would leave a node in the radix tree.
        server_args.skip_server_warmup = True
        if server_args.sampling_backend is None:
            server_args.sampling_backend = "pytorch"
        if server_args.grammar_backend is None:
            server_args.grammar_backend = "none"
        if server_args.dtype == "auto":
            server_args.dtype = "float32"
        if server_args.max_total_tokens is None:
            server_args.max_total_tokens = MAX_TOTAL_TOKENS
        if server_args.chunked_prefill_size is None:
            server_args.chunked_prefill_size = CHUNKED_PREFILL_TOKENS


def refuse_unsupported(server_args: Any) -> None:
    """Check settings and model; fields this SGLang does not have count as not set.

    Raises:
        UnsupportedEngineError: names the first setting that cannot be served, and the value that can.
    """
    for field, values in SUPPORTED.items():
        value = getattr(server_args, field, values[0])
        if value not in values:
            flag = "--" + field.replace("_", "-")
            raise UnsupportedEngineError(f"{flag} {value}", f"{flag} {values[0]} (or left out) on the CPU engine")
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(
        server_args.model_path, trust_remote_code=server_args.trust_remote_code, revision=server_args.revision
    )
    problem = model_problem(config.get_text_config())
    if problem is not None:
        raise UnsupportedEngineError(
            f"{problem} in {server_args.model_path}", "a model with full multi-head attention on the CPU engine"
        )


def model_problem(config: Any) -> str | None:
    """Say why a model's KV cache cannot be served, or None; `config` is a transformers text configuration."""
    if getattr(config, "kv_lora_rank", None):
        return "latent attention (MLA)"
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"layers of type {', '.join(sorted(kinds))}"
    return None
