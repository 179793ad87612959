"""Commands on cached context in SGLang's cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from kvflow.engine import Answer, Capacity, Commands, KvCommand
from kvflow.patches.claim import commands_of
from kvflow.patches.guard import note

if TYPE_CHECKING:
    from kvflow.config import Settings
    from kvflow.patches.tree import KvflowRadixCache


class CacheCommands:
    """Takes commands of one scheduler, on every rank alike.

    Args:
        cache: whose nodes they are about.
        settings: what one tenant may.
    """

    def __init__(self, cache: KvflowRadixCache, settings: Settings) -> None:
        self._cache = cache
        self._share = settings.commands.pin_share
        planner = cache.prefetch.planner if cache.prefetch is not None else None
        self._commands = Commands(cache.coordinator, planner, self._capacity, self._demote)
        self.outcomes: Counter[str] = Counter()

    def execute(self, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Execute commands on workflows and their agents, in order; one that fails hurts no other."""
        return [self._answer(self._commands.execute, KvCommand(**fields)) for fields in commands]

    def prompt(self, req: Any) -> None:
        """Execute what a request says about its own prompt, once all of it is there."""
        if hasattr(req, "_kvflow_commanded"):
            return
        commands = commands_of(req)
        tokens = self._cache.publishable(req, len(req.origin_input_ids))
        tokens -= tokens % self._cache.page_size
        path = self._cache.path_of(req) if commands and req.lock is not None else []
        if commands and (not path or path[0][1] < tokens):
            return
        req._kvflow_commanded = True
        for command in commands:
            end_tokens = min(tokens, command.end_tokens or tokens)
            self._answer(self._commands.on_prompt, replace(command, end_tokens=end_tokens), path)

    def flushed(self) -> None:
        """The cache has been flushed."""
        self._commands.flushed()

    def _answer(self, execute: Callable[..., Answer], *arguments: Any) -> dict[str, Any]:
        try:
            answer = execute(*arguments)
        except Exception:
            note("commands")
            answer = Answer(status="rejected", reason="kvflow failed; see the server's log")
        self.outcomes[answer.status] += 1
        return asdict(answer)

    def _capacity(self) -> Capacity:
        memory = self._cache.watch.memory()
        return Capacity(device_tokens=memory.device_tokens, host_tokens=memory.host_tokens, tenant_share=self._share)

    def _demote(self, node: Any) -> bool:
        cache = self._cache
        if not node.backuped or node not in cache.tree_core.evictable_device_leaves:
            return False
        cache._evict_device_leaf(node.id, dict.fromkeys(cache.tree_components, 0))
        return True
