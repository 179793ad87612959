"""Commands on cached context in SGLang's cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sglang.srt.session.streaming_session import is_virtual_node

from kvflow.engine import Answer, Capacity, Commands, KvCommand
from kvflow.patches.claim import commands_of, is_forerunner
from kvflow.patches.guard import Guard, note
from kvflow.patches.messages import KvflowCommanded

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
        prefetch = cache.prefetch
        self._commands = Commands(
            cache.coordinator,
            prefetch.planner if prefetch is not None else None,
            self._capacity,
            self._demote,
            pin_hourly_s=settings.commands.pin_hourly_s,
            copying=_copying,
            backups=prefetch.backups.planner if prefetch is not None else None,
        )
        self._guard = Guard("commands")
        self.outcomes: Counter[str] = Counter()
        self.tell: Callable[[KvflowCommanded, Any], None] = lambda message, req: None

    def execute(self, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Execute commands on workflows and their agents, in order; one that fails hurts no other."""
        return [asdict(self._answer(self._commands.execute, KvCommand(**fields))) for fields in commands]

    def prompt(self, req: Any) -> None:
        """Execute what a request says about its own prompt, once all of it is there.

        But for what lets it go: that has to wait for the request itself.
        """
        if hasattr(req, "_kvflow_answers") or is_forerunner(req):
            return
        _, commands = commands_of(req)
        path = self._cache.path_of(req) if commands and req.lock is not None else []
        if commands and (not path or path[0][1] < self._tokens(req)):
            self._begin(req, commands, path)
            return
        now = {place: command for place, command in enumerate(commands) if command.verb != "kv.demote"}
        req._kvflow_answers = {place: self._on_prompt(req, command, path) for place, command in now.items()}

    def _begin(self, req: Any, commands: list[KvCommand], path: list[tuple[Any, int]]) -> None:
        """Pin what is there of a prompt that has been computed, where SGLang enters the rest of it with its answer.

        It does so for the sake of windows and states. All of the prompt is pinned, and that counted, in the end.
        """
        computed = path and (req.extend_end or 0) >= len(req.origin_input_ids)
        if self._cache.plain or not computed or hasattr(req, "_kvflow_begun"):
            return
        req._kvflow_begun = True
        for command in commands:
            if command.verb in ("kv.pin", "kv.retain"):
                self._guard.run(self._commands.on_prompt, self._of(req, command), path, default=None)

    def over(self, req: Any) -> None:
        """Execute the rest when a request has let go of its path, for good, and say what has become of all."""
        key, commands = commands_of(req)
        if not commands:
            return
        of_session = is_virtual_node(req.last_node) or not req.kv.holds_kv  # which goes on with it, or has given it up
        path = [] if of_session else self._cache.path_of(req)
        answers: dict[int, Answer] = getattr(req, "_kvflow_answers", {})
        for place, command in enumerate(commands):
            if place not in answers:
                answers[place] = self._on_prompt(req, command, path)
        told = [asdict(answer) for _, answer in sorted(answers.items())]
        self.tell(KvflowCommanded(key=key, answers=told), req)

    def tick(self) -> None:
        """Time has passed: carry out what had to wait."""
        for command, answer in self._guard.run(self._commands.tick, default=[]):
            self._count(command, answer)

    def flushed(self) -> None:
        """The cache has been flushed."""
        self._commands.flushed()

    def _on_prompt(self, req: Any, command: KvCommand, path: list[tuple[Any, int]]) -> Answer:
        return self._answer(self._commands.on_prompt, self._of(req, command), path)

    def _of(self, req: Any, command: KvCommand) -> KvCommand:
        """A command with the range of a request's prompt that it is about."""
        tokens = self._tokens(req)
        end_tokens = min(tokens, command.end_tokens or tokens)
        if command.verb == "kv.demote" and end_tokens == tokens:
            end_tokens = None  # the answer hangs below the prompt, and has to leave before it
        return replace(command, end_tokens=end_tokens)

    def _tokens(self, req: Any) -> int:
        """How much of a request's prompt can be in the cache, in whole pages."""
        return self._cache.in_pages(self._cache.publishable(req, len(req.origin_input_ids)))

    def _answer(self, execute: Callable[..., Answer], command: KvCommand, *arguments: Any) -> Answer:
        try:
            answer = execute(command, *arguments)
        except Exception:
            note("commands")
            answer = Answer(status="rejected", reason="kvflow failed; see the server's log")
        self._count(command, answer)
        return answer

    def _count(self, command: KvCommand, answer: Answer) -> None:
        self.outcomes[answer.status] += 1
        reason = f"{command.verb}: {answer.status}" + (f", {answer.reason}" if answer.reason else "")
        self._cache.journal.commanded(command.workflow_id or "", command.agent or "", answer.tokens, reason)

    def _capacity(self) -> Capacity:
        memory = self._cache.watch.memory()
        return Capacity(device_tokens=memory.device_tokens, host_tokens=memory.host_tokens, tenant_share=self._share)

    def _demote(self, node: Any) -> bool:
        cache = self._cache
        if not node.backuped or node not in cache.tree_core.evictable_device_leaves:
            return False
        cache._evict_device_leaf(node.id, dict.fromkeys(cache.tree_components, 0))
        return True


def _copying(node: Any) -> bool:
    """Whether a copy of a node to the host is under way."""
    return node.write_through_pending_id is not None
