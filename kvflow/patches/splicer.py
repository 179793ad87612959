"""Reuse inside SGLang's prefill: KV from elsewhere goes into a request's own pages, the rest is computed as ever.

What was put in, and all that was computed after it, stays the request's own: it is never published in the radix tree,
and so never reaches the host tier, storage or another request.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any
from zlib import crc32

import torch

from kvflow import config
from kvflow.config import Settings
from kvflow.errors import ReuseUnsupportedError
from kvflow.patches import rows, switch
from kvflow.patches.checks import Checks
from kvflow.patches.claim import claim_of, namespace_of, reuse_of
from kvflow.patches.guard import Guard
from kvflow.patches.kv_pool import Pool, rotary_of
from kvflow.patches.seams import Feature, Role
from kvflow.reuse import KV, Chunk, HostMemory, Method, Mode, Plan, Prompt, QualityGate, Reuse, Slot, cut

logger = logging.getLogger(__name__)

_SEPARATE_RUNS = frozenset({"flashinfer"})
"""Attention backends that write KV after attention within a layer: a later run would not see an earlier one's."""


@dataclass(slots=True)
class _State:
    """What is known of a request that asks for reuse.

    Attributes:
        asked: what it says, see :func:`kvflow.patches.claim.attach`.
        prompt: None for an exact copy made for a check.
        attempt: how often it has been retracted; each attempt has its own plan.
        shown: whether reuse has learned from it.
    """

    asked: dict[str, Any]
    prompt: Prompt | None
    plan: Plan | None = None
    attempt: int = -1
    shown: bool = False


class Splicer:
    """Splices the prompts of one scheduler's requests, on every rank alike.

    Args:
        scheduler: SGLang's, once its model is loaded.
        settings: how to correct KV, and how much of it may be kept.

    Raises:
        ReuseUnsupportedError: it cannot be done with this model, or this way of serving it.
    """

    def __init__(self, scheduler: Any, settings: Settings) -> None:
        runner = scheduler.tp_worker.model_runner
        _refuse(scheduler.server_args)
        self._runner = runner
        self._pool = Pool(runner)
        self._ranks = _cpu_group() if scheduler.server_args.tp_size > 1 else None
        self._together = runner.prefill_attention_backend_str not in _SEPARATE_RUNS
        self._settings = settings.reuse
        self._guard = Guard("reuse")
        self.refused: Counter[str] = Counter()
        gate = QualityGate(settings.reuse.agreement, settings.reuse.divergence, settings.reuse.check_every)
        self.checks = Checks(gate, _replica())
        self._sampled: list[tuple[int, tuple[str, str]]] = []
        self.reuse = Reuse(
            rotary_of(runner),
            HostMemory(int(settings.reuse.memory_gib * 2**30)),
            gate=gate,
            min_tokens=settings.reuse.min_tokens,
            anchors=settings.reuse.anchors,
            entropy=settings.reuse.entropy,
            total=self._total,
            keep=_on_host,
        )

    def forward(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a batch's forward pass, some of its prompts spliced."""
        if not self._asked(batch):
            return original(worker, batch, *args, **kwargs)
        chunks = self._guard.run(self._prepare, batch, default=None)
        self._sampled = self._guard.run(self._checked, batch, default=[])
        if self._agreed(chunks) and chunks is not None:
            worker.set_hicache_consumer(batch.hicache_consumer_index)
            for runs in self._rounds(chunks):
                rows.compute(batch, self._runner, runs)
            starts = [chunk.rest if chunk else start for chunk, start in zip(chunks, batch.prefix_lens, strict=True)]
            batch = rows.beginning_later(batch, starts)
        result = original(worker, batch, *args, **kwargs)
        self._sampled = []
        return result

    def before_sampling(self, logits: torch.Tensor) -> None:
        """Keep the logits of copies made for checks; sampling may change them in place."""
        for row, check in self._sampled:
            self.checks.followed(check, logits[row].clone())

    def publishable(self, req: Any, up_to: int) -> int:
        """How many of a request's first tokens other requests may see."""
        state: _State | None = getattr(req, "_kvflow_splice", None)
        if state is None or state.plan is None or not state.plan.grafts:
            return up_to
        return max(min(up_to, state.plan.exact_tokens), req.kv.cache_protected_len)

    def computed(self, req: Any, up_to: int) -> None:
        """A request's KV is there up to a token, and about to be published as far as it may."""
        state: _State | None = getattr(req, "_kvflow_splice", None)
        if state is None or up_to < len(req.origin_input_ids):
            return
        if state.prompt is not None and state.plan is not None:
            self._guard.run(self._show, req, state.prompt, state.plan, up_to, default=None)
        if req.finished() and "check" in state.asked:
            for slot in self._guard.run(self.checks.finished, tuple(state.asked["check"]), default=[]):
                logger.warning("kvflow: reuse of %s in %s changes answers too much: computed from now on", *slot[::-1])
                self.reuse.distrust(slot)

    def stats(self) -> dict[str, Any]:
        """What has happened, for ``/kvflow/v1/stats``."""
        reuse = self.reuse
        return {
            **asdict(reuse.counters),
            "refused": dict(self.refused),
            "texts": len(reuse.segments),
            "anchors": sum(len(pool.anchors) for pool in reuse.pools.values()),
            "checks": self.checks.compared,
            "gate": reuse.gate.report(),
            "held_bytes": reuse.memory.used_bytes,
            "dropped": reuse.memory.dropped,
        }

    def _asked(self, batch: Any) -> bool:
        return (
            batch is not None
            and batch.forward_mode.is_extend_without_speculative()
            and any(reuse_of(req) is not None for req in batch.reqs)
        )

    def _prepare(self, batch: Any) -> list[Chunk | None] | None:
        """Plan, and put in what belongs into this chunk of each request; None if that is nothing.

        Nothing is lost if it fails half way: what is not spliced is computed, over what was put in.
        """
        chunks: list[Chunk | None] = []
        for row, req in enumerate(batch.reqs):
            start = batch.prefix_lens[row]
            state = self._state(req, start)
            if state is None or state.prompt is None or state.plan is None or not state.plan.grafts:
                chunks.append(None)
                continue
            chunk = cut(state.plan.grafts, start, start + batch.extend_lens[row])
            slots = int(batch.req_pool_indices_cpu[row])
            for graft in chunk.grafts:
                self._pool.write(slots, graft.start, self.reuse.fill(state.prompt, graft, self._pool.device))
            chunks.append(chunk if chunk.grafts else None)
        return chunks if any(chunks) else None

    def _state(self, req: Any, cached_tokens: int) -> _State | None:
        state: _State | None = getattr(req, "_kvflow_splice", None)
        if state is None:
            asked = reuse_of(req)
            if asked is None:
                return None
            state = req._kvflow_splice = _State(asked, self._prompt(req, asked))
        if state.prompt is not None and state.attempt != req.retraction_count:
            state.attempt = req.retraction_count
            state.plan = self.reuse.plan(state.prompt, cached_tokens)
        return state

    def _checked(self, batch: Any) -> list[tuple[int, tuple[str, str]]]:
        """Rows of copies made for checks whose prompt ends in this batch."""
        found: list[tuple[int, tuple[str, str]]] = []
        for row, req in enumerate(batch.reqs):
            check = (reuse_of(req) or {}).get("check")
            if check and batch.prefix_lens[row] + batch.extend_lens[row] == len(req.origin_input_ids):
                found.append((row, tuple(check)))
        return found

    def _prompt(self, req: Any, asked: dict[str, Any]) -> Prompt | None:
        """What a request asks for; None if it asks for nothing that can be done."""
        reason = _refusal(req)
        if reason:
            self.refused[reason] += 1
        if reason or not asked["slots"]:
            return None
        claim = claim_of(req)
        tokens = torch.tensor(list(req.origin_input_ids), dtype=torch.int64)
        slots = [Slot(start=start, end=min(end, len(tokens)), name=name) for start, end, name in asked["slots"]]
        own = f"{claim.tenant if claim else ''}/{namespace_of(req)}"
        return Prompt(
            namespace=asked.get("namespace", own),
            workflow_type=asked.get("workflow_type", claim.workflow_type if claim else ""),
            agent=asked.get("agent", claim.agent if claim else ""),
            tokens=tokens,
            slots=tuple(slot for slot in slots if slot.start < slot.end),
            method=self._method(asked.get("mode") or self._settings.mode),
            trial="check" in asked,
        )

    def _method(self, mode: str) -> Method:
        name, _, repair = mode.partition("+")
        return Method(mode=Mode(name), repair_tokens=self._settings.repair_tokens if repair else 0)

    def _rounds(self, chunks: Sequence[Chunk | None]) -> list[list[rows.Run]]:
        """What is computed before the rest: all at once, or run after run where attention asks for it."""
        of_rows = [[(row, *run) for run in chunk.runs] if chunk else [] for row, chunk in enumerate(chunks)]
        if self._together:
            together = [run for runs in of_rows for run in runs]
            return [together] if together else []
        return [[run for run in round_ if run is not None] for round_ in zip_longest(*of_rows)]

    def _show(self, req: Any, prompt: Prompt, plan: Plan, up_to: int) -> None:
        def read(start: int, end: int) -> KV:
            return self._pool.read(req.kv.req_pool_idx, start, end)

        state: _State = req._kvflow_splice
        if not state.shown:
            state.shown = True
            self.reuse.computed(prompt, plan, read)
        if req.finished() and not prompt.trial:
            if plan.check:
                self.checks.begin(req, prompt, plan, state.asked.get("mode"))
            tokens = torch.tensor(list(req.full_untruncated_fill_ids[:up_to]), dtype=torch.int64)
            self.reuse.answered(prompt, tokens, not plan.grafts, read)

    def _agreed(self, chunks: list[Chunk | None] | None) -> bool:
        """Whether all ranks splice alike; forward passes of different shape would wait for each other for ever."""
        if self._ranks is None:
            return True
        shape = [(chunk.rest, chunk.runs) if chunk else () for chunk in chunks or ()]
        mark = crc32(repr(shape).encode())
        ends = torch.tensor([mark, -mark], dtype=torch.int64)
        torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX, group=self._ranks)
        return int(ends[0]) == -int(ends[1])

    def _total(self, vector: torch.Tensor) -> torch.Tensor:
        if self._ranks is not None:
            torch.distributed.all_reduce(vector, group=self._ranks)
        return vector


def start(scheduler: Any) -> str:
    """Give a scheduler its splicer, if reuse is asked for; returns why it has none.

    Raises:
        ReuseUnsupportedError: it is asked for and not possible, and ``KVFLOW_STRICT`` is set.
    """
    settings = config.load()
    cache = scheduler.tree_cache
    if settings.reuse.mode == "off":
        return "reuse.mode is off"
    if not hasattr(cache, "splicer") or not switch.books[Role.SCHEDULER].holds(Feature.REUSE):
        return "a seam it needs does not hold"
    try:
        splicer = Splicer(scheduler, settings)
    except ReuseUnsupportedError as error:
        if settings.strict:
            raise
        logger.error("kvflow: reuse is off: %s", error)
        return str(error)
    cache.splicer = scheduler.tp_worker._kvflow_splicer = scheduler.tp_worker.model_runner._kvflow_splicer = splicer
    return ""


def forward(original: Callable[..., Any], self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Splice the prompts of a batch (hook around ``TpModelWorker.forward_batch_generation``)."""
    splicer: Splicer | None = getattr(self, "_kvflow_splicer", None)
    if splicer is None:
        return original(self, batch, *args, **kwargs)
    return splicer.forward(original, self, batch, *args, **kwargs)


def before_sampling(self: Any, logits_output: Any, *args: Any, **kwargs: Any) -> None:
    """See logits before they are sampled from (hook before ``ModelRunner.sample``)."""
    splicer: Splicer | None = getattr(self, "_kvflow_splicer", None)
    if splicer is not None and splicer._sampled:
        splicer.before_sampling(logits_output.next_token_logits)


def _replica() -> int | None:
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().dp_rank


def _cpu_group() -> Any:
    from sglang.srt.distributed import get_tp_group

    return get_tp_group().cpu_group


def _on_host(kv: KV) -> KV:
    """Where KV is remembered: pinned if it comes from a GPU."""
    if kv.keys.device.type == "cpu":
        return KV(kv.keys.contiguous(), kv.values.contiguous())
    keys, values = (torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in (kv.keys, kv.values))
    keys.copy_(kv.keys)
    values.copy_(kv.values)
    return KV(keys, values)


def _refuse(server_args: Any) -> None:
    """Refuse servers in which it would go wrong.

    Raises:
        ReuseUnsupportedError: names the first thing found.
    """
    refusals = (
        (server_args.speculative_algorithm is not None, "speculative decoding"),
        (bool(server_args.lora_paths) or bool(server_args.enable_lora), "LoRA adapters"),
        (bool(getattr(server_args, "enable_return_hidden_states", False)), "--enable-return-hidden-states"),
        (getattr(server_args, "enable_return_routed_experts", False), "--enable-return-routed-experts"),
    )
    for refused, found in refusals:
        if refused:
            raise ReuseUnsupportedError(found)


def _refusal(req: Any) -> str:
    """Why a request cannot be spliced; empty if it can."""
    reasons = (
        (req.return_logprob and 0 <= req.logprob_start_len < len(req.origin_input_ids), "logprobs of the prompt"),
        (bool(req.return_hidden_states), "hidden states"),
        (req.multimodal_inputs is not None, "multimodal inputs"),
        (req.input_embeds is not None or req.positional_embed_overrides is not None, "embeddings as input"),
        (req.session is not None, "a session, which would keep it"),
    )
    return next((reason for found, reason in reasons if found), "")
