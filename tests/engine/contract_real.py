"""The body of the contract test that is SGLang's."""

from __future__ import annotations

from typing import Any

from kvflow.predict import WorkflowUpdate
from tests.engine.contract_scenario import CONTENT_TOKENS, DEVICE_TOKENS, PAGE, Answer, Ask, Log, Operation, Spelling
from tests.engine.model_free import Requests


class Real:
    """SGLang's cache, and what is asked of it.

    Args:
        args: published server arguments.
        chunk_tokens: length of the parts in which prompts are computed.
    """

    def __init__(
        self, policy: str, spelling: Spelling, *, host_ratio: float, args: Any, chunk_tokens: int = CONTENT_TOKENS
    ) -> None:
        self._requests = Requests("kvflow", device_tokens=DEVICE_TOKENS, page_tokens=PAGE, chunk_tokens=chunk_tokens)
        self.cache: Any = self._requests.cache
        if host_ratio:
            self.cache.init_hicache(args, self._requests.params)
        self.cache.coordinator.set_policy(policy)
        self.log = Log()
        self._spelling = spelling
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
        self.settle()
        device = DEVICE_TOKENS - self._requests.allocator.available_size()
        controller = self.cache.cache_controller
        host = controller.mem_pool_host.size - controller.mem_pool_host.available_size() if controller else 0
        self.log.kept.append((device, host))

    def _admit(self, ask: Ask) -> None:
        """As the scheduler does: match, admit, load back, allocate, compute, enter into the tree."""
        req = self._requests.ask(str(ask.number), self._spelling.tokens(ask.pieces), ask.answer.tokens, ask.claim)
        device = req.prefix_len
        self._requests.admit(req)
        self.log.found.append((ask.number, device, req.host_loaded_length))
        if req.host_loaded_length:
            self.log.loaded.append(req.host_loaded_length)
        self._requests.compute(req, self._spelling.tokens([ask.answer])[0])
        self._running[ask.number] = (ask, req)

    def _finish(self, ask: Ask, req: Any) -> None:
        for token in self._spelling.tokens([ask.answer])[1:]:
            self._requests.decode(req, token)
        self._requests.finish(req)

    def settle(self) -> None:
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
