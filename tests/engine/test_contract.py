"""The contract that licenses the simulator: SGLang's real cache and the simulated one do the same with equal requests.

One scenario (hinted workflows of several agents: shared fixed prompts, growing conversations, branches, superseded
states, ends) goes through SGLang's radix cache with its own allocator, admission and host tier, and through the
simulated tree and memory. Every prompt must find the same tokens on the same tiers, every tier must lose the same nodes
in the same order, every load must move as much. There is no tolerance.

What SGLang's scheduler frees beyond need is a rule of its own: a page per prompt, and per decode step a page per
running request, needed or not. Here the simulated side is asked for as much. The simulated server, which counts a page
for every running request instead, is held to answers of one token, where that makes no difference.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import simpy

from kvflow.engine import Accounting, Coordinator, PromptClaim
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from kvflow.sim import Profile
from kvflow.sim.context import Context, Pager
from kvflow.sim.memory import Memory
from kvflow.sim.node import Node, backed_up
from kvflow.sim.request import Request
from kvflow.sim.server import Server
from kvflow.trace import Piece

pytestmark = pytest.mark.engine

PAGE = 16
DEVICE_TOKENS = 96 * PAGE
CONTENT_TOKENS = 1 << 16
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
PIECES_AT_ONCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A prompt to answer. The answer is a content of its own, so that a later prompt can go on from it."""

    number: int
    claim: PromptClaim
    pieces: tuple[Piece, ...]
    answer: Piece

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a prompt asked for earlier is complete."""

    number: int


Operation = Ask | Answer | WorkflowUpdate | float
"""What happens next; a number is the time."""


class Scenario:
    """Seeded programs of several agents.

    Args:
        at_once: requests that run at a time.
        answer_tokens: length of every answer; None for different ones.
    """

    TYPES = ("review", "research")
    AGENTS = ("planner", "coder", "critic")

    def __init__(self, seed: int, *, at_once: int = 1, answer_tokens: int | None = None) -> None:
        self._random = random.Random(seed)
        self._at_once = at_once
        self._answer_tokens = answer_tokens
        self._contents = 0
        self._numbers = 0
        self._fixed = {
            (kind, agent): Piece(f"{kind}/{agent}", self._random.randrange(20, 150))
            for kind in self.TYPES
            for agent in self.AGENTS
        }
        self._live: dict[str, dict[str, list[Piece]]] = {}
        self._started = 0

    def play(self, count: int) -> Iterator[Operation]:
        """Give so many operations, and then the answers that are still missing."""
        running: list[int] = []
        now_s = 0.0
        for _ in range(count):
            now_s += self._random.random()
            chance = self._random.random()
            if len(running) >= self._at_once or (running and chance < 0.3):
                yield Answer(running.pop(self._random.randrange(len(running))))
            elif chance < 0.45 or len(self._live) < 3:
                yield now_s
                yield self._predict()
            elif chance < 0.50:
                yield self._end()
            else:
                ask = self._ask()
                running.append(ask.number)
                yield ask
        for number in running:
            yield Answer(number)

    def _predict(self) -> WorkflowUpdate:
        if len(self._live) < 5 and (len(self._live) < 3 or self._random.random() < 0.3):
            self._started += 1
            self._live[f"{self._random.choice(self.TYPES)}:{self._started}"] = {}
        workflow = self._random.choice(list(self._live))
        claims = tuple(
            ClaimPrediction(
                agent=agent,
                steps=float(self._random.randrange(0, 6)),
                pinned=self._random.random() < 0.2,
                probability=self._random.choice((0.25, 0.5, 1.0)),
                due_s=self._random.choice((None, 3.0, 30.0, 300.0)),
            )
            for agent in self.AGENTS
            if self._random.random() < 0.8
        )
        return WorkflowUpdate(workflow_id=workflow, workflow_type=workflow.split(":")[0], claims=claims)

    def _end(self) -> WorkflowUpdate:
        workflow = self._random.choice(list(self._live))
        del self._live[workflow]
        return WorkflowUpdate(workflow_id=workflow, workflow_type=workflow.split(":")[0], retired=True)

    def _ask(self) -> Ask:
        workflow = self._random.choice(list(self._live))
        kind, contexts = workflow.split(":")[0], self._live[workflow]
        agent = self._random.choice(self.AGENTS)
        fixed = self._fixed[kind, agent]
        known = contexts.get(agent)
        chance = self._random.random()
        if known is None or chance < 0.2:  # from the start: what was there is superseded
            before = [fixed]
        elif chance < 0.4:  # go on from somewhere within
            before = _first(known, self._random.randrange(1, sum(piece.tokens for piece in known) + 1))
        elif chance < 0.5:  # continue what another agent of the workflow has
            before = list(self._random.choice(list(contexts.values())))
        else:
            before = list(known)
        added = [self._new(self._random.randrange(1, 120)) for _ in range(self._random.randrange(0, PIECES_AT_ONCE))]
        pieces = [*before, *added]
        if sum(piece.tokens for piece in pieces) > DEVICE_TOKENS // 4:
            pieces = [fixed, self._new(40)]
        answer = self._new(self._answer_tokens or self._random.randrange(2, 60))
        contexts[agent] = [*pieces, answer]
        self._numbers += 1
        declared = fixed.tokens if self._random.random() < 0.8 else 0
        claim = PromptClaim(workflow_id=workflow, workflow_type=kind, agent=agent, fixed_tokens=declared)
        return Ask(number=self._numbers, claim=claim, pieces=tuple(pieces), answer=answer)

    def _new(self, tokens: int) -> Piece:
        self._contents += 1
        return Piece(f"new/{self._contents}", tokens)


def _first(pieces: Sequence[Piece], tokens: int) -> list[Piece]:
    kept = []
    for piece in pieces:
        take = min(piece.tokens, tokens)
        if take:
            kept.append(Piece(piece.content, take, piece.offset))
        tokens -= take
    return kept


@dataclass(slots=True)
class Log:
    """What a cache did, in the order in which it did it.

    Attributes:
        lost: (tier, position of the node's end, its tokens).
        found: (request, tokens on the device, tokens on the host).
        loaded: tokens of every load-back.
        kept: (tokens in use on the device, tokens on the host) after every operation.
    """

    lost: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)
    found: list[tuple[int, int, int]] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)


class Spelling:
    """Spells contents out as token ids: equal contents are equal tokens, different ones share none."""

    def __init__(self) -> None:
        self._starts: dict[str, int] = {}

    def tokens(self, pieces: Sequence[Piece]) -> list[int]:
        spelled: list[int] = []
        for piece in pieces:
            start = self._starts.setdefault(piece.content, len(self._starts) * CONTENT_TOKENS) + piece.offset
            spelled.extend(range(start, start + piece.tokens))
        return spelled


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


@dataclass(slots=True)
class _Running:
    request: Request
    pages: int


class Simulated:
    """The simulated tree and memory, driven step by step as SGLang's scheduler drives the real ones."""

    def __init__(
        self, policy: str, spelling: Spelling, *, host_tokens: int, share: float = 1.0, profile: Profile = PROFILE
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
        )
        self.tree = self.memory.tree
        accounting = Accounting(4 * PAGE)
        self._server = Server(self._env, profile, self.memory, self.coordinator, accounting, guard=None)
        self.tree._share = lambda: share
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

        def lost(node: Node, tier: str) -> None:
            self.log.lost.append((tier, node.end * PAGE, self._spelled(node)))
            told(node, tier)

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


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Any]]:
    """Publish server arguments with a host tier, whose copies are those of the CPU engine."""
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import l2_transfer
    from sglang.srt.mem_cache.pool_host import base, mha
    from sglang.srt.runtime_context import get_context

    from kvflow.patches.cpu import hicache, streams
    from kvflow.patches.cpu.transfer import transfer_kv_direct

    monkeypatch.setenv("KVFLOW_GUARD__ENABLED", "false")
    monkeypatch.setattr(l2_transfer, "device_module", streams)
    monkeypatch.setattr(cache_controller, "device_module", streams)
    monkeypatch.setattr(mha, "transfer_kv_direct", transfer_kv_direct, raising=False)  # SGLang has none on a CPU
    monkeypatch.setattr(base, "HICACHE_HOST_MEMORY_RESERVE_BYTES", hicache.HOST_RESERVE_BYTES)
    without_pinning, original = hicache._without_pinning(base.HostKVCache), base.HostKVCache.__init__

    def initialise(*arguments: Any, **options: Any) -> None:
        arguments, options = without_pinning(*arguments, **options)
        original(*arguments, **options)

    monkeypatch.setattr(base.HostKVCache, "__init__", initialise)
    installed: list[Any] = []

    def with_host(ratio: float) -> Any:
        fields: dict[str, Any] = {}
        if ratio:
            fields = {
                "enable_hierarchical_cache": True,
                "hicache_ratio": ratio,
                "hicache_write_policy": "write_through",
                "hicache_io_backend": "direct",
                "hicache_mem_layout": "layer_first",
            }
        override = get_context().override_server_args(**fields)
        installed.append(override)
        return override.install()

    yield with_host
    for override in reversed(installed):
        override.restore()


POLICIES = ("lru", "lfu", "steps", "ttl", "saga", "cost")
"""Orders that look at recency, hits, steps, pins, ages and rates: everything a node is known by."""


def compare(scenario: Scenario, count: int, real: Real, simulated: Simulated) -> None:
    """Play a scenario on both and compare after every operation."""
    for number, operation in enumerate(scenario.play(count)):
        real.do(operation)
        simulated.do(operation)
        where = f"operation {number}: {operation}"
        assert simulated.log.found[-1:] == real.log.found[-1:], where
        assert simulated.log.lost == real.log.lost, where
        assert simulated.log.loaded == real.log.loaded, where
        assert simulated.log.kept[-1] == real.log.kept[-1], where


def play(
    policy: str, seed: int, publish: Callable[[float], Any], *, host: float, at_once: int, share: float = 1.0
) -> Real:
    spelling = Spelling()
    real = Real(policy, spelling, host_ratio=host, args=publish(host))
    simulated = Simulated(policy, spelling, host_tokens=real.host_tokens, share=share)
    compare(Scenario(seed, at_once=at_once), 400, real, simulated)
    return real


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_the_device_alone(publish: Callable[[float], Any], policy: str, seed: int) -> None:
    log = play(policy, seed, publish, host=0, at_once=1 + seed).log
    assert len(log.lost) > 100
    assert sum(device for _, device, _ in log.found) > 1000


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_device_and_host(publish: Callable[[float], Any], policy: str, seed: int) -> None:
    log = play(policy, seed, publish, host=1.5, at_once=1 + seed).log
    assert {tier for tier, _, _ in log.lost} == {"device", "host"}
    assert len(log.loaded) > 3


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_a_host_smaller_than_the_device(publish: Callable[[float], Any], policy: str) -> None:
    """It fills with copies of what is on the device, which cannot leave it; what finds no room is tried again."""
    log = play(policy, 5, publish, host=0.5, at_once=2).log
    assert {tier for tier, _, _ in log.lost} == {"device", "host"}


@pytest.mark.parametrize("policy", ["saga", "cost"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_candidates_of_a_guard_that_trusts_little(
    publish: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch, policy: str, share: float
) -> None:
    from kvflow.patches.trust import Trust

    monkeypatch.setattr(Trust, "share", share)
    assert play(policy, 6, publish, host=1.5, at_once=2, share=share).log.loaded


@pytest.mark.parametrize("host", [0, 1.5])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_simulated_server(publish: Callable[[float], Any], policy: str, host: float) -> None:
    spelling = Spelling()
    real = Real(policy, spelling, host_ratio=host, args=publish(host))
    serve(real, Served(policy, spelling, host_tokens=real.host_tokens))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_the_simulated_server_when_prompts_are_computed_in_parts(publish: Callable[[float], Any], policy: str) -> None:
    """Orders without claims, on the device alone.

    The simulated server takes the memory of all parts at once, SGLang part by part. So what the first part enters, a
    claim or a copy on the host, can decide there what the other parts push out, and cannot here.
    """
    spelling = Spelling()
    real = Real(policy, spelling, host_ratio=0, args=publish(0), chunk_tokens=4 * PAGE)
    profile = PROFILE.model_copy(update={"chunk_tokens": 4 * PAGE})
    serve(real, Served(policy, spelling, host_tokens=0, profile=profile))


def serve(real: Real, served: Served) -> None:
    """Play a scenario of short answers, one after the other."""
    for operation in Scenario(8, answer_tokens=1).play(500):
        if isinstance(operation, Answer):
            continue
        real.do(operation)
        if isinstance(operation, Ask):
            real.do(Answer(operation.number))
        served.do(operation)
        assert served.log.found == real.log.found, operation
        assert served.log.lost == real.log.lost, operation
        assert served.log.loaded == real.log.loaded, operation
        assert served.log.kept[-1] == real.log.kept[-1], operation
    assert len(real.log.lost) > 100
