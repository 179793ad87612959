"""Reuse inside SGLang's prefill: KV from elsewhere goes into a request's own pages, the rest is computed as ever.

What was put in, and all that was computed after it, stays the request's own: it is never published in the radix tree,
and so never reaches the host tier, storage or another request.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from kvflow.config import Settings
from kvflow.engine import Journal
from kvflow.patches import refusals
from kvflow.patches.checks import SPLICED, Checks
from kvflow.patches.claim import claim_of, namespace_of, reuse_of
from kvflow.patches.guard import Guard
from kvflow.patches.kv_pool import rotary_of
from kvflow.patches.splicing import Spliced, Splicing
from kvflow.reuse import KV, Graft, HostMemory, Method, Mode, Outcomes, Plan, Prompt, QualityGate, Reuse, Slot, cut

logger = logging.getLogger(__name__)

_EMBEDDINGS = ("input_embeds", "replace_embeds")
"""Of a batch: they are by place among its tokens, so that no other tokens of its requests can be computed."""


@dataclass(slots=True)
class _State:
    """What is known of a request that asks for reuse.

    Attributes:
        asked: what it says, see :func:`kvflow.patches.claim.attach`.
        prompt: None for an exact copy made for a check.
        attempt: how often it has been retracted; each attempt has its own plan.
        shown: whether reuse has learned from it.
        put: whether something has been put into it.
    """

    asked: dict[str, Any]
    prompt: Prompt | None
    plan: Plan | None = None
    attempt: int = -1
    shown: bool = False
    put: bool = False


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
        refusals.of_server(scheduler.server_args)
        self._ranks = _cpu_group() if scheduler.server_args.tp_size > 1 else None
        self._splicing = Splicing(runner, self._ranks, settings.reuse.repair_layer)
        self._settings = settings.reuse
        self._journal: Journal = scheduler.tree_cache.journal
        self._guard = Guard("reuse")
        self._filling = Guard("reuse")  # apart: it may fail on one rank alone
        self._failures_left = self._guard.failures_left
        self.refused: Counter[str] = Counter()
        gate = QualityGate(settings.reuse.agreement, settings.reuse.divergence, settings.reuse.check_every)
        self.checks = Checks(gate, _replica())
        self._sampled: list[tuple[int, tuple[str, str]]] = []
        self.reuse = Reuse(
            rotary_of(runner),
            HostMemory(int(settings.reuse.memory_gib * 2**30)),
            gate=gate,
            outcomes=Outcomes(settings.reuse.outcome_loss, settings.reuse.check_every),
            min_tokens=settings.reuse.min_tokens,
            anchors=settings.reuse.anchors,
            entropy=settings.reuse.entropy,
            total=self._splicing.total,
        )

    def forward(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a batch's forward pass, some of its prompts spliced."""
        if not self._asked(batch):
            return original(worker, batch, *args, **kwargs)
        nothing: list[Spliced | None] = [None] * len(batch.reqs)
        self._agree()
        self._guard.run(self._plan, batch, default=None)
        spliced = self._filling.run(self._fill, batch, default=nothing)
        if any(spliced):
            worker.set_hicache_consumer(batch.hicache_consumer_index)
        rest = self._splicing.compute(batch, spliced)
        if rest is not None:
            self._note_put(batch, spliced)
        self._sampled = self._guard.run(self._checked, batch, default=[])
        batch = rest or batch
        result = original(worker, batch, *args, **kwargs)
        if self._sampled and getattr(result, "delay_sample_func", None) is not None:  # sampled beside the next batch
            self.before_sampling(result.logits_output.next_token_logits)
        self._sampled = []
        return result

    @property
    def samples(self) -> bool:
        """Whether logits of this forward pass are wanted."""
        return bool(self._sampled)

    def before_sampling(self, logits: torch.Tensor) -> None:
        """Keep the logits of copies made for checks; sampling may change them in place."""
        self._guard.run(self._keep_logits, logits, default=None)

    def publishable(self, req: Any, up_to: int) -> int:
        """How many of a request's first tokens other requests may see."""
        state: _State | None = getattr(req, "_kvflow_splice", None)
        if state is None or state.plan is None or not state.plan.spliced:
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
                logger.warning("kvflow: reuse of %s in %s changes answers too much: computed from now on", *slot[:0:-1])
                self.reuse.distrust(slot)

    def clear(self) -> None:
        """Forget all texts, and checks of which one half has been computed: the model's weights may have changed."""
        self.reuse.clear()
        self.checks.clear()

    def feedback(self, workflow_id: str, outcome: float) -> None:
        """An application says what came of a workflow, from 0 to 1."""
        for slot in self._guard.run(self.reuse.feedback, workflow_id, outcome, default=[]):
            logger.warning("kvflow: reuse of %s in %s makes outcomes worse: computed from now on", *slot[:0:-1])

    def stats(self) -> dict[str, Any]:
        """What has happened, for ``/kvflow/v1/stats``."""
        reuse = self.reuse
        anchors = [anchor for pool in reuse.pools.values() for anchor in pool.anchors]
        return {
            **asdict(reuse.counters),
            "repaired_tokens": self._splicing.repaired_tokens,
            "refused": dict(self.refused),
            "texts": len(reuse.segments),
            "conversations": len(reuse.conversations),
            "anchors": len(anchors),
            "anchor_bytes": sum(anchor.nbytes for anchor in anchors),
            "checks": self.checks.compared,
            "checks_under_way": self.checks.under_way,
            "gate": [{"tenant": _tenant(row.pop("namespace")), **row} for row in reuse.report()],
            "held_bytes": reuse.memory.used_bytes,
            "dropped": reuse.memory.dropped,
        }

    def _asked(self, batch: Any) -> bool:
        return (
            batch is not None
            and batch.forward_mode.is_extend_without_speculative()
            and all(getattr(batch, name, None) is None for name in _EMBEDDINGS)
            and any(reuse_of(req) is not None for req in batch.reqs)
        )

    def _agree(self) -> None:
        """Have ranks give up together, and forget together what one of them may have failed to learn.

        Not guarded: a rank that has given up answers the others nevertheless.
        """
        ours = [self._guard.failures_left, self._filling.failures_left]
        planning, filling = self._splicing.least(ours)
        if self._ranks is not None and planning < self._failures_left:
            self.reuse.clear()
            self.reuse.gate.clear()
            self.checks.clear()
        self._failures_left = planning if filling else 0  # what cannot be put in is not planned
        self._guard.failures_left = self._failures_left
        self._filling.failures_left = filling

    def _plan(self, batch: Any) -> None:
        """Decide for all before anything is put in: ranks add up distances; only putting in may fail on one alone."""
        for req, cached_tokens in zip(batch.reqs, batch.prefix_lens, strict=True):
            self._state(req, cached_tokens)

    def _fill(self, batch: Any) -> list[Spliced | None]:
        """Put in what belongs into this chunk of each request.

        Nothing is lost if it fails half way: what is not spliced is computed, over what was put in.
        """
        return [self._put(batch, row, req) for row, req in enumerate(batch.reqs)]

    def _put(self, batch: Any, row: int, req: Any) -> Spliced | None:
        start = batch.prefix_lens[row]
        state: _State | None = getattr(req, "_kvflow_splice", None)
        if state is None or state.prompt is None or state.plan is None:
            return None
        chunk = cut(state.plan.grafts, start, start + batch.extend_lens[row])
        if not chunk.grafts:
            return None
        prompt, device = state.prompt, self._splicing.pool.device

        def fill(graft: Graft) -> KV:
            return self.reuse.fill(prompt, graft, device)

        slots = int(batch.req_pool_indices_cpu[row])
        return self._splicing.put(slots, chunk, fill, prompt.method.repair_share, trial=prompt.trial)

    def _note_put(self, batch: Any, spliced: Sequence[Spliced | None]) -> None:
        for req, one in zip(batch.reqs, spliced, strict=True):
            state: _State | None = getattr(req, "_kvflow_splice", None)
            if one is None or state is None or state.put or state.prompt is None or state.plan is None:
                continue
            state.put = True
            self.reuse.put(state.prompt, state.plan)

    def _state(self, req: Any, cached_tokens: int) -> None:
        state: _State | None = getattr(req, "_kvflow_splice", None)
        if state is None:
            asked = reuse_of(req)
            if asked is None:
                return
            state = req._kvflow_splice = _State(asked, self._prompt(req, asked))
        if state.prompt is not None and state.attempt != req.retraction_count:
            state.attempt = req.retraction_count
            state.plan = self.reuse.plan(state.prompt, max(cached_tokens, state.asked.get("exact_tokens", 0)))
            self._tell(state.prompt, state.plan)

    def _tell(self, prompt: Prompt, plan: Plan) -> None:
        if prompt.workflow_id and not prompt.trial:
            tokens = sum(graft.end - graft.start for graft in plan.grafts)
            self._journal.reused(prompt.workflow_id, prompt.agent, tokens, plan.reason)

    def _checked(self, batch: Any) -> list[tuple[int, tuple[str, str]]]:
        """Rows of copies made for checks whose prompt ends in this batch; those nothing is put into show nothing."""
        found: list[tuple[int, tuple[str, str]]] = []
        for row, req in enumerate(batch.reqs):
            check = (reuse_of(req) or {}).get("check")
            if not check or batch.prefix_lens[row] + batch.extend_lens[row] != len(req.origin_input_ids):
                continue
            state: _State | None = getattr(req, "_kvflow_splice", None)
            if check[1] == SPLICED and (state is None or not state.put):
                self.checks.give_up(check[0])
            else:
                found.append((row, tuple(check)))
        return found

    def _keep_logits(self, logits: torch.Tensor) -> None:
        for row, check in self._sampled:
            self.checks.followed(check, logits[row].clone())

    def _prompt(self, req: Any, asked: dict[str, Any]) -> Prompt | None:
        """What a request asks for; None if it asks for nothing that can be done."""
        reason = refusals.of_request(req)
        if reason:
            self.refused[reason] += 1
        if reason or (not asked["slots"] and "check" in asked):  # without slots its answer is remembered
            return None
        claim = claim_of(req)
        tokens = torch.tensor(list(req.origin_input_ids), dtype=torch.int64)
        slots = [Slot(start=start, end=min(end, len(tokens)), name=name) for start, end, name in asked["slots"]]
        own = json.dumps([claim.tenant if claim else "", namespace_of(req)])
        return Prompt(
            namespace=asked.get("namespace", own),
            workflow_type=asked.get("workflow_type", claim.workflow_type if claim else ""),
            agent=asked.get("agent", claim.agent if claim else ""),
            tokens=tokens,
            slots=tuple(slot for slot in slots if slot.start < slot.end),
            method=self._method(asked.get("mode") or self._settings.mode),
            trial="check" in asked,
            workflow_id=asked.get("workflow_id", claim.workflow_id if claim else ""),
            program_id=(claim.program_id or "") if claim else "",
        )

    def _method(self, mode: str) -> Method:
        name, _, repair = mode.partition("+")
        if not repair:
            return Method(mode=Mode(name))
        settings = self._settings
        return Method(mode=Mode(name), repair_tokens=settings.repair_tokens, repair_share=settings.repair_share)

    def _show(self, req: Any, prompt: Prompt, plan: Plan, up_to: int) -> None:
        def read(start: int, end: int) -> KV:
            return self._splicing.pool.read(req.kv.req_pool_idx, start, end)

        state: _State = req._kvflow_splice
        if not state.shown:
            state.shown = True
            self.reuse.computed(prompt, plan, read)
        state.plan = plan.done
        if req.finished() and not prompt.trial:
            if plan.check:
                self.checks.begin(req, prompt, plan, state.asked.get("mode"))
            up_to = min(up_to, len(req.origin_input_ids) + len(req.output_ids) - 1)  # the last one's may be on its way
            tokens = torch.tensor(list(req.full_untruncated_fill_ids[:up_to]), dtype=torch.int64)
            self.reuse.answered(prompt, plan, tokens, read)


def _tenant(namespace: object) -> str:
    """Whose a namespace is; the rest of it is nobody else's business."""
    return str(json.loads(str(namespace))[0])


def _replica() -> int | None:
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().dp_rank


def _cpu_group() -> Any:
    from sglang.srt.distributed import get_tp_group

    return get_tp_group().cpu_group
