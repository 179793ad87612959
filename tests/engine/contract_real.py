"""The body of the contract test that is SGLang's."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from kvflow.predict import WorkflowUpdate
from tests.engine.contract_scenario import CONTENT_TOKENS, DEVICE_TOKENS, PAGE, Answer, Ask, Log, Operation, Spelling


class Real:
    """SGLang's cache, with its own admission and allocation around it; only the model is missing.

    Args:
        args: published server arguments.
        chunk_tokens: length of the parts in which prompts are computed.
    """

    def __init__(
        self, policy: str, spelling: Spelling, *, host_ratio: float, args: Any, chunk_tokens: int = CONTENT_TOKENS
    ) -> None:
        import torch
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.components import ComponentType

        from kvflow.patches.tree import KvflowRadixCache

        pool = MHATokenToKVPool(DEVICE_TOKENS, PAGE, torch.float32, 1, 4, 1, "cpu", False)
        self.allocator = PagedTokenToKVPoolAllocator(DEVICE_TOKENS, PAGE, torch.float32, "cpu", pool, need_sort=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(8, DEVICE_TOKENS, "cpu", False),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
            tree_core_backend="kvflow",
        )
        self.cache: Any = KvflowRadixCache(params)
        if host_ratio:
            self.cache.init_hicache(args, params)
        self.cache.coordinator.set_policy(policy)
        self.log = Log()
        self._spelling = spelling
        self._chunk_tokens = chunk_tokens
        self._running: dict[int, tuple[Ask, Any]] = {}
        self._record()

    @property
    def host_tokens(self) -> int:
        controller = self.cache.cache_controller
        return controller.mem_pool_host.size if controller is not None else 0

    def do(self, operation: Operation) -> None:
        if isinstance(operation, Ask):
            self._admit(operation)
        elif isinstance(operation, Answer):
            self._finish(*self._running.pop(operation.number))
        elif isinstance(operation, WorkflowUpdate):
            self.cache.coordinator.apply(operation)
        else:
            self.cache.coordinator.tick(operation)
        self._settle()
        device = DEVICE_TOKENS - self.allocator.available_size()
        controller = self.cache.cache_controller
        host = controller.mem_pool_host.size - controller.mem_pool_host.available_size() if controller else 0
        self.log.kept.append((device, host))

    def _admit(self, ask: Ask) -> None:
        """As the scheduler does: match, admit, load back, allocate, compute, enter into the tree."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.mem_cache.allocation import alloc_for_extend
        from sglang.srt.mem_cache.common import checkpoint_kv_cache
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(max_new_tokens=ask.answer.tokens, ignore_eos=True)
        req: Any = Req(str(ask.number), "", array("q", self._spelling.tokens(ask.pieces)), sampling)
        req._kvflow_claim = ask.claim
        req.init_next_round_input(self.cache)
        device = req.prefix_len
        adder = self._adder()
        adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)
        assert adder.can_run_list == [req], "the scenario must fit"
        self.log.found.append((ask.number, device, req.host_loaded_length))
        if req.host_loaded_length:
            self.log.loaded.append(req.host_loaded_length)
        self.cache.ready_to_load_host_cache()
        alloc_for_extend(_batch(self.cache, req))
        while req.extend_end < ask.tokens:
            req.kv.kv_committed_len = req.kv.kv_allocated_len = req.extend_end
            req.inflight_middle_chunks += 1
            checkpoint_kv_cache(req, self.cache)
            req.init_next_round_input()
            self._adder().add_chunked_req(req)
            alloc_for_extend(_batch(self.cache, req))
            req.inflight_middle_chunks -= 1
        req.kv.kv_committed_len = req.kv.kv_allocated_len = req.extend_end
        req.output_ids.append(self._spelling.tokens([ask.answer])[0])
        checkpoint_kv_cache(req, self.cache)
        self._running[ask.number] = (ask, req)

    def _adder(self) -> Any:
        from sglang.srt.managers.schedule_policy import PrefillAdder

        nobody: Any = None
        return PrefillAdder(PAGE, self.cache, self.allocator, nobody, 1.0, CONTENT_TOKENS, self._chunk_tokens)

    def _finish(self, ask: Ask, req: Any) -> None:
        import torch
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.allocation import alloc_paged_token_slots_decode
        from sglang.srt.mem_cache.common import release_kv_cache

        pool = self.cache.req_to_token_pool
        for token in self._spelling.tokens([ask.answer])[1:]:
            length = req.kv.kv_committed_len
            lengths = torch.tensor([length + 1])
            last = pool.req_to_token[req.kv.req_pool_idx, length - 1 : length]
            slots = alloc_paged_token_slots_decode(self.cache, lengths, lengths, last)
            pool.write((torch.tensor([req.kv.req_pool_idx]), torch.tensor([length])), slots.to(torch.int32))
            req.kv.kv_committed_len = req.kv.kv_allocated_len = length + 1
            req.output_ids.append(token)
        req.finished_reason = FINISH_LENGTH(length=ask.answer.tokens)
        release_kv_cache(req, self.cache, checkpoint=True)

    def _settle(self) -> None:
        """Let every copy under way arrive."""
        cache = self.cache
        if cache.cache_controller is None:
            return
        cache.check_hicache_events()
        while cache.ongoing_write_through or cache.ongoing_load_back:
            cache.check_hicache_events()

    def _record(self) -> None:
        core = self.cache.tree_core
        leave_device, leave_host = core.evict_device_leaf, core._evict_host_leaf

        def device(node_id: int, is_write_back: bool) -> Any:
            self.log.lost.append(("device", *_spelled(core.node_by_id(node_id))))
            return leave_device(node_id, is_write_back)

        def host(node: Any, *arguments: Any, **options: Any) -> None:
            self.log.lost.append(("host", *_spelled(node)))
            leave_host(node, *arguments, **options)

        core.evict_device_leaf, core._evict_host_leaf = device, host


def _spelled(node: Any) -> tuple[int, tuple[int, ...]]:
    end, above = len(node.key), node.parent
    while above.parent is not None:
        end += len(above.key)
        above = above.parent
    return end, tuple(node.key.token_ids)


def _batch(cache: Any, req: Any) -> Any:
    """What SGLang's allocation looks at in a batch of one prompt."""
    import torch

    return SimpleNamespace(
        reqs=[req],
        device="cpu",
        tree_cache=cache,
        req_to_token_pool=cache.req_to_token_pool,
        prefix_lens=[req.prefix_len],
        extend_lens=[req.extend_end - req.prefix_len],
        extend_num_tokens=req.extend_end - req.prefix_len,
        seq_lens=torch.tensor([req.extend_end]),
        seq_lens_cpu=torch.tensor([req.extend_end]),
        hisparse_coordinator=None,
        is_dllm=lambda: False,
        maybe_evict_swa=lambda: None,
    )
