"""The bodies of the contract test that are the simulator's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import simpy

from kvflow.engine import Accounting, Choice, Coordinator, Tier
from kvflow.policy import EvictionClass
from kvflow.predict import WorkflowUpdate
from kvflow.sim import Profile
from kvflow.sim.context import Context, Pager
from kvflow.sim.memory import Memory
from kvflow.sim.node import Node, backed_up
from kvflow.sim.request import Request
from kvflow.sim.server import Server
from kvflow.trace import Piece
from tests.engine.contract_scenario import DEVICE_TOKENS, PAGE, Answer, Ask, Log, Operation, Spelling

PROFILE = Profile(
    name="contract",
    prefill_step_s=0.0,
    prefill_token_s=1e-4,
    attention_token_s=1e-9,
    decode_step_s=1e-3,
    load_token_s=1e-6,
    backup_token_s=1e-6,
    storage_token_s=1e-6,
    reserve_tokens=0,
)


@dataclass(slots=True)
class _Running:
    request: Request
    pages: int


class Simulated:
    """The simulated tree and memory, driven step by step as SGLang's scheduler drives the real ones."""

    def __init__(
        self,
        policy: str,
        spelling: Spelling,
        *,
        host_tokens: int,
        share: float = 1.0,
        profile: Profile = PROFILE,
        exclusive: bool = False,
    ) -> None:
        self.coordinator = Coordinator(policy, backed_up=backed_up)
        self.log = Log()
        self._env = simpy.Environment()
        self._pager = Pager(PAGE, 4)
        self._spelling = spelling
        self.memory = Memory(
            self._env,
            profile,
            self.coordinator,
            Accounting(4 * PAGE),
            page_tokens=PAGE,
            device_tokens=DEVICE_TOKENS,
            host_tokens=host_tokens,
            storage_tokens=0,
            guard=None,
            exclusive=exclusive,
        )
        self.tree = self.memory.tree
        accounting = Accounting(4 * PAGE)
        self._server = Server(self._env, profile, self.memory, self.coordinator, accounting, guard=None)
        self.tree._choice = lambda tier: Choice(share)
        self._running: dict[int, _Running] = {}
        self._record()

    def do(self, operation: Operation) -> None:
        if isinstance(operation, Ask):
            self._admit(operation)
        elif isinstance(operation, Answer):
            self._finish(self._running.pop(operation.number))
        elif isinstance(operation, WorkflowUpdate):
            self.coordinator.apply(operation)
        else:
            self.coordinator.tick(operation)
        self._env.run(until=self._env.now + 1.0)  # every copy arrives
        kept = self.memory.device_pages - self.memory.free_pages
        self.log.kept.append((kept * PAGE, self.tree.host_pages * PAGE))

    def _admit(self, ask: Ask) -> None:
        tree, memory = self.tree, self.memory
        prompt = self._pager.extend(self._pager.empty(), 0, ask.pieces)
        node = tree.match(prompt, None, (prompt.tokens - 1) // PAGE)
        while not node.on_device and not node.on_host:
            node = _above(node)
        device = node
        while not device.on_device:
            device = _above(device)
        tree.lock(node)
        host = node.end - device.end
        self.log.found.append((ask.number, device.end * PAGE, host * PAGE))
        if host:
            assert memory.make_room(host)
            memory.load_back(node, device)
            self.log.loaded.append(host * PAGE)
        new_tokens = prompt.tokens - node.end * PAGE
        assert memory.make_room(_pages(new_tokens + PAGE))  # SGLang frees a page more than a prompt needs
        request = self._request(ask, prompt)
        request.node = node
        run = self._running[ask.number] = _Running(request, _pages(prompt.tokens))
        memory.private_tokens += (run.pages - node.end) * PAGE
        self._server._enter(request, prompt.pages)

    def _request(self, ask: Ask, prompt: Context) -> Request:
        return Request(
            claim=ask.claim,
            prompt=prompt,
            whole=self._pager.extend(prompt, prompt.tokens, [ask.answer]),
            output_tokens=ask.answer.tokens,
            near=None,
            arrived_s=self._env.now,
            done=self._env.event(),
        )

    def _finish(self, run: _Running) -> None:
        memory, request = self.memory, run.request
        length = request.prompt.tokens
        for _ in range(request.output_tokens - 1):  # the last token is never computed
            assert memory.make_room(1)  # SGLang frees a page per step, whether it needs one or not
            length += 1
            if _pages(length) > run.pages:
                run.pages += 1
                memory.private_tokens += PAGE
        self._server._enter(request, length // PAGE)
        assert request.node is not None
        memory.private_tokens -= (run.pages - request.node.end) * PAGE
        self.tree.unlock(request.node)

    def _record(self) -> None:
        told = self.tree._on_evicted

        def lost(node: Node, tier: Tier, cls: EvictionClass) -> None:
            self.log.lost.append((tier, node.end * PAGE, self._spelled(node)))
            told(node, tier, cls)

        self.tree._on_evicted = lost

    def _spelled(self, node: Node) -> tuple[int, ...]:
        """Tokens of a node, from the identities of its pages."""
        contents = {identity: what for what, identity in self._pager._identities.items()}
        tokens: list[int] = []
        for identity, first, pages in node.key.runs:
            what: Any = contents[identity]
            if isinstance(what[0], str):
                content, phase = what
                tokens += self._spelling.tokens([Piece(content, pages * PAGE, phase + first * PAGE)])
            else:
                tokens += self._spelling.tokens(what)
        return tuple(tokens)


class Served(Simulated):
    """The simulated server itself, one request after the other."""

    def _admit(self, ask: Ask) -> None:
        prompt = self._pager.extend(self._pager.empty(), 0, ask.pieces)
        request = self._request(ask, prompt)
        self._env.process(self._server.submit(request))
        self._env.run(until=request.done)
        self.log.found.append((ask.number, request.hits["device"], request.hits["host"]))
        if request.hits["host"]:
            self.log.loaded.append(request.hits["host"])


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE)


def _above(node: Node) -> Node:
    assert node.parent is not None
    return node.parent
