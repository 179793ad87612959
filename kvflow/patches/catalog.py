"""The seams of kvflow, by process."""

from __future__ import annotations

from kvflow.patches import cpu
from kvflow.patches.catalog_http import HTTP_SEAMS
from kvflow.patches.catalog_tree import TREE_SEAMS
from kvflow.patches.seams import Feature, Kind, Role, Seam

SEAMS: tuple[Seam, ...] = (
    Seam(
        name="flags.declare",
        role=Role.LAUNCH,
        kind=Kind.AFTER,
        feature=Feature.FLAGS,
        target="sglang.srt.server_args.ServerArgs.add_cli_args",
        parameters=("parser",),
        body="kvflow.patches.flags:declare",
        why="Adds --enable-kvflow and its companions to SGLang's launch command.",
    ),
    Seam(
        name="flags.read",
        role=Role.LAUNCH,
        kind=Kind.AFTER,
        feature=Feature.FLAGS,
        target="sglang.srt.server_args.ServerArgs.from_cli_args",
        body="kvflow.patches.flags:read",
        why="Reads the flags, refuses configurations that would silently not work, and switches kvflow on.",
    ),
    *HTTP_SEAMS,
    Seam(
        name="scheduler.receive",
        role=Role.SCHEDULER,
        kind=Kind.BEFORE,
        feature=Feature.HINTS,
        target="sglang.srt.managers.scheduler.Scheduler.process_input_requests",
        parameters=("self", "recv_reqs"),
        body="kvflow.patches.mail:unpack",
        why="Takes predictions out of the requests they came with, on every rank.",
    ),
    Seam(
        name="messages",
        role=Role.SCHEDULER,
        kind=Kind.REGISTRY,
        feature=Feature.HINTS,
        target="sglang.srt.managers.io_struct.hook_custom_types",
        why="Lets kvflow's messages cross processes when SGLang encodes with msgpack.",
    ),
    Seam(
        name="relay.messages",
        role=Role.RELAY,
        kind=Kind.REGISTRY,
        feature=Feature.HINTS,
        target="sglang.srt.managers.io_struct.hook_custom_types",
        why="Lets the data-parallel controller read them, for it reads all that it passes on.",
    ),
    Seam(
        name="scheduler.dispatch",
        role=Role.SCHEDULER,
        kind=Kind.AFTER,
        feature=Feature.HINTS,
        target="sglang.srt.managers.scheduler.Scheduler.init_request_dispatcher",
        parameters=("self",),
        body="kvflow.patches.scheduler:dispatch",
        why="Hands kvflow's messages to the coordinator on every rank.",
    ),
    *TREE_SEAMS,
    Seam(
        name="scheduler.batch",
        role=Role.SCHEDULER,
        kind=Kind.AROUND,
        feature=Feature.ADMISSION,
        target="sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw",
        parameters=("self",),
        body="kvflow.patches.batch:form",
        why="Keeps requests of programs that wait for their turn out of the queue while a prefill batch is formed; "
        "lets the batch wait for a load ahead that one of its requests needs; begins the next one.",
    ),
    Seam(
        name="scheduler.run",
        role=Role.SCHEDULER,
        kind=Kind.AFTER,
        feature=Feature.ACCOUNTING,
        target="sglang.srt.managers.scheduler.Scheduler.run_batch",
        parameters=("self", "batch"),
        body="kvflow.patches.timing:launched",
        why="Takes note of what a batch computes.",
    ),
    Seam(
        name="scheduler.result",
        role=Role.SCHEDULER,
        kind=Kind.AFTER,
        feature=Feature.ACCOUNTING,
        target="sglang.srt.managers.scheduler.Scheduler.process_batch_result",
        parameters=("self", "batch"),
        body="kvflow.patches.timing:processed",
        why="Measures how long it took, so that decisions go by this model and machine.",
    ),
    Seam(
        name="scheduler.adder",
        role=Role.SCHEDULER,
        kind=Kind.AFTER,
        feature=Feature.PREFETCH,
        target="sglang.srt.managers.scheduler.Scheduler.get_prefill_adder_class",
        parameters=("self",),
        body="kvflow.patches.prefetch_hooks:adder_class",
        why="Passes over requests whose context is still being loaded while others can run, and those that have come "
        "since admission looked.",
    ),
    Seam(
        name="batch.decode",
        role=Role.SCHEDULER,
        kind=Kind.AFTER,
        feature=Feature.PREFETCH,
        target="sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_decode",
        parameters=("self",),
        body="kvflow.patches.prefetch_hooks:decode",
        why="Decoding does not wait for the load a prefill once waited for; its number may be another load's by now.",
    ),
    Seam(
        name="scheduler.flush",
        role=Role.SCHEDULER,
        kind=Kind.BEFORE,
        feature=Feature.PREFETCH,
        target="sglang.srt.managers.scheduler.Scheduler.flush_cache",
        parameters=("self",),
        body="kvflow.patches.prefetch_hooks:settle",
        why="A server that only loads ahead is idle: a flush does not fail because of that.",
    ),
    Seam(
        name="scheduler.release_memory",
        role=Role.SCHEDULER,
        kind=Kind.BEFORE,
        feature=Feature.PREFETCH,
        target="sglang.srt.managers.scheduler_components.weight_updater."
        "SchedulerWeightUpdaterManager.release_memory_occupation",
        parameters=("self", "recv_req"),
        body="kvflow.patches.prefetch_hooks:settle",
        why="Nor does giving memory back.",
    ),
    Seam(
        name="scheduler.attach_storage",
        role=Role.SCHEDULER,
        kind=Kind.BEFORE,
        feature=Feature.PREFETCH,
        target="sglang.srt.managers.scheduler.Scheduler.attach_hicache_storage_wrapped",
        parameters=("self", "recv_req"),
        body="kvflow.patches.prefetch_hooks:settle",
        why="Nor does attaching a storage backend.",
    ),
    Seam(
        name="scheduler.detach_storage",
        role=Role.SCHEDULER,
        kind=Kind.BEFORE,
        feature=Feature.PREFETCH,
        target="sglang.srt.managers.scheduler.Scheduler.detach_hicache_storage_wrapped",
        parameters=("self", "recv_req"),
        body="kvflow.patches.prefetch_hooks:settle",
        why="Nor does detaching one.",
    ),
    Seam(
        name="adder.add_one",
        role=Role.SCHEDULER,
        kind=Kind.SUBCLASS,
        feature=Feature.PREFETCH,
        target="sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
        parameters=("self", "req"),
        why="Where a request is passed over.",
    ),
    Seam(
        name="load.counter",
        role=Role.SCHEDULER,
        kind=Kind.SUBCLASS,
        feature=Feature.PREFETCH,
        target="sglang.srt.managers.cache_controller.LayerDoneCounter.update_producer",
        parameters=("self",),
        why="Tells loads apart by number, so that a batch can wait for the right one.",
    ),
    Seam(
        name="load.session",
        role=Role.SCHEDULER,
        kind=Kind.SUBCLASS,
        feature=Feature.PREFETCH,
        target="sglang.srt.session.streaming_session.StreamingSession.borrowed_slot",
        parameters=("self", "req"),
        why="Says what a streaming session has locked for a turn, which has to wait for it as well.",
    ),
    Seam(
        name="worker.forward",
        role=Role.SCHEDULER,
        kind=Kind.AROUND,
        feature=Feature.REUSE,
        target="sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        parameters=("self", "batch"),
        body="kvflow.patches.reuse_hooks:forward",
        why="Puts KV from elsewhere into a request's own pages, and computes the rest of its prompt.",
    ),
    Seam(
        name="runner.sample",
        role=Role.SCHEDULER,
        kind=Kind.BEFORE,
        feature=Feature.REUSE,
        target="sglang.srt.model_executor.model_runner.ModelRunner.sample",
        parameters=("self", "logits_output"),
        body="kvflow.patches.reuse_hooks:before_sampling",
        why="Keeps the logits of prompts that the quality gate compares.",
    ),
    Seam(
        name="worker.runs",
        role=Role.SCHEDULER,
        kind=Kind.SUBCLASS,
        feature=Feature.REUSE,
        target="sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        parameters=("batch", "model_runner"),
        why="Computes the parts of a prompt that lie between texts from elsewhere.",
    ),
    Seam(
        name="queue.refresh",
        role=Role.SCHEDULER,
        kind=Kind.AFTER,
        feature=Feature.ACCOUNTING,
        target="sglang.srt.mem_cache.common.touch_waiting_prefix",
        parameters=("req", "tree_cache"),
        body="kvflow.patches.watch:refreshed",
        why="Plain recency keeps what SGLang refreshes for requests that wait, and so has the shadow LRU.",
    ),
    Seam(
        name="load.wait",
        role=Role.SCHEDULER,
        kind=Kind.AROUND,
        feature=Feature.ACCOUNTING,
        target="sglang.srt.managers.cache_controller.LayerLoadingEvent.wait",
        parameters=("self", "layer_index"),
        body="kvflow.patches.stall:wait",
        why="Measures how long a forward pass waits for a load.",
    ),
)


CPU_SEAMS: tuple[Seam, ...] = tuple(
    Seam(
        name=target.name,
        role=Role.SCHEDULER,
        kind=Kind.ATTRIBUTE,
        feature=Feature.CPU_ENGINE,
        target=target.target,
        why=target.why,
    )
    for target in cpu.TARGETS
)
"""What the CPU engine touches; attached by `cpu.install`, and there only when it is asked for."""


def seams_of(role: Role) -> tuple[Seam, ...]:
    """The seams that belong to one process."""
    seams = SEAMS + CPU_SEAMS if cpu.wanted() else SEAMS
    return tuple(seam for seam in seams if seam.role is role)
