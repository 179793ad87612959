"""Requests in SGLang's cache, with its own admission and allocation around it; only the model is missing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


class Requests:
    """One cache, and requests that are computed in it one after the other. Server arguments must be published.

    Args:
        backend: tree core.
        chunk_tokens: length of the parts in which prompts are computed.
        bigrams: the tree's keys are of pairs of tokens, as SGLang's are with EAGLE.
    """

    def __init__(
        self,
        backend: str,
        *,
        device_tokens: int,
        page_tokens: int,
        chunk_tokens: int = 1 << 16,
        bigrams: bool = False,
    ) -> None:
        import torch
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        from kvflow.patches.tree import KvflowRadixCache

        pool = MHATokenToKVPool(device_tokens, page_tokens, torch.float32, 1, 4, 1, "cpu", False)
        self.allocator = PagedTokenToKVPoolAllocator(
            device_tokens, page_tokens, torch.float32, "cpu", pool, need_sort=False
        )
        self.params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(8, device_tokens, "cpu", False),
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_tokens,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=backend,
            is_eagle=bigrams,
        )
        self.cache: Any = (KvflowRadixCache if backend == "kvflow" else UnifiedRadixCache)(self.params)
        self._page_tokens = page_tokens
        self._chunk_tokens = chunk_tokens

    def ask(
        self, name: str, tokens: Sequence[int], answer_tokens: int, claim: Any = None, *, extra_key: str | None = None
    ) -> Any:
        """A request that has been matched with the cache; its ``prefix_len`` tokens were on the device."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(max_new_tokens=answer_tokens, ignore_eos=True)
        req: Any = Req(name, "", array("q", tokens), sampling, extra_key=extra_key)
        req._kvflow_claim = claim
        req.init_next_round_input(self.cache)
        return req

    def admit(self, req: Any) -> None:
        """Load back what is on the host."""
        adder = self._adder()
        adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)
        assert adder.can_run_list == [req], "the request must fit"

    def compute(self, req: Any, first: int) -> None:
        """Allocate the rest of the prompt, and enter it into the tree; ``first`` is the answer's first token."""
        from sglang.srt.mem_cache.allocation import alloc_for_extend
        from sglang.srt.mem_cache.common import checkpoint_kv_cache

        self.cache.ready_to_load_host_cache()
        alloc_for_extend(_batch(self.cache, req))
        while req.extend_end < len(req.origin_input_ids):
            req.kv.kv_committed_len = req.kv.kv_allocated_len = req.extend_end
            req.inflight_middle_chunks += 1
            checkpoint_kv_cache(req, self.cache)
            req.init_next_round_input()
            self._adder().add_chunked_req(req)
            alloc_for_extend(_batch(self.cache, req))
            req.inflight_middle_chunks -= 1
        req.kv.kv_committed_len = req.kv.kv_allocated_len = req.extend_end
        req.output_ids.append(first)
        checkpoint_kv_cache(req, self.cache)

    def decode(self, req: Any, token: int) -> None:
        """Allocate one more token."""
        import torch
        from sglang.srt.mem_cache.allocation import alloc_paged_token_slots_decode

        pool, length = self.cache.req_to_token_pool, req.kv.kv_committed_len
        lengths = torch.tensor([length + 1])
        last = pool.req_to_token[req.kv.req_pool_idx, length - 1 : length]
        slots = alloc_paged_token_slots_decode(self.cache, lengths, lengths, last)
        pool.write((torch.tensor([req.kv.req_pool_idx]), torch.tensor([length])), slots.to(torch.int32))
        req.kv.kv_committed_len = req.kv.kv_allocated_len = length + 1
        req.output_ids.append(token)

    def finish(self, req: Any) -> None:
        """Enter the whole of it into the tree, and let it go."""
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        req.finished_reason = FINISH_LENGTH(length=len(req.output_ids))
        release_kv_cache(req, self.cache, checkpoint=True)

    def _adder(self) -> Any:
        from sglang.srt.managers.schedule_policy import PrefillAdder

        nobody: Any = None
        longest = 1 << 16
        return PrefillAdder(self._page_tokens, self.cache, self.allocator, nobody, 1.0, longest, self._chunk_tokens)


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
