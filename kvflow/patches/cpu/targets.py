"""What the CPU engine touches in SGLang, as data; readable without SGLang."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """One touched place: a short name, the dotted path in SGLang, and what our replacement stands in for."""

    name: str
    target: str
    why: str


PLATFORM = Target(
    "cpu.platform",
    "sglang.srt.platforms.interface.SRTPlatform",
    "An out-of-tree platform (entry point sglang.srt.platforms) selects torch-native code everywhere, so that neither "
    "sgl_kernel nor Triton nor CUDA graphs are asked for.",
)
PIN_MEMORY = Target(
    "cpu.pin_memory",
    "sglang.srt.mem_cache.pool_host.base.HostKVCache.__init__",
    "Host KV buffers are page-locked through the CUDA runtime; on the CPU engine they are plain memory.",
)
STREAM_DIRECTIONS = Target(
    "cpu.stream_directions",
    "sglang.srt.mem_cache.l2_transfer.L2TransferEngine.__init__",
    "Tells the two copy streams apart, so that each direction has its own bandwidth and counters.",
)
TRANSFER = Target(
    "cpu.transfer",
    "sglang.srt.mem_cache.pool_host.mha.transfer_kv_direct",
    "The copy of the direct backend comes from sgl_kernel on a GPU and does not exist without one.",
)
TRANSFER_STREAMS = Target(
    "cpu.transfer_streams",
    "sglang.srt.mem_cache.l2_transfer.device_module",
    "torch.cpu streams and events do nothing; copies run asynchronously on worker threads instead.",
)
CONTROLLER_STREAMS = Target(
    "cpu.controller_streams",
    "sglang.srt.managers.cache_controller.device_module",
    "The per-layer load events the forward pass waits for must be of the same kind as the copy streams.",
)
EXTEND_ATTENTION = Target(
    "cpu.extend_attention",
    "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend",
    "The torch-native backend computes attention for cached rows too; without this a cache hit would save little.",
)
DECODE_ATTENTION = Target(
    "cpu.decode_attention",
    "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_decode",
    "The torch-native backend spends more time on collecting cached rows than on attending to them.",
)
DECODE = Target(
    "cpu.decode",
    "sglang.srt.model_executor.runner.eager_runner.EagerRunner._execute_decode",
    "A few rows are multiplied in less time than it takes to wake another thread.",
)
IDLE = Target(
    "cpu.idle",
    "sglang.srt.managers.scheduler.Scheduler.on_idle",
    "A scheduler with nothing but copies under way polls without a pause, and copy threads wait for the interpreter.",
)
LINEAR = Target(
    "cpu.linear",
    "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
    "A row of a product has the same bits alone as among others; else answers depend on what runs beside them.",
)
LM_HEAD = Target(
    "cpu.lm_head",
    "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
    "The same for logits.",
)
HOST_RESERVE = Target(
    "cpu.host_reserve",
    "sglang.srt.mem_cache.pool_host.base.HICACHE_HOST_MEMORY_RESERVE_BYTES",
    "10 GB of RAM are kept free beside host KV buffers, more than a laptop or a CI machine may have.",
)

TARGETS: tuple[Target, ...] = (
    PLATFORM,
    PIN_MEMORY,
    STREAM_DIRECTIONS,
    TRANSFER,
    TRANSFER_STREAMS,
    CONTROLLER_STREAMS,
    EXTEND_ATTENTION,
    DECODE_ATTENTION,
    DECODE,
    IDLE,
    LINEAR,
    LM_HEAD,
    HOST_RESERVE,
)
