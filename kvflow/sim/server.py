"""The simulated server: a queue, continuous batching with chunked prefill, and memory below them.

Follows SGLang's scheduler: prefill goes before decode, requests are admitted in order as long as their prompt and a
reserve for what runs fits, a prompt longer than the chunk is computed in turns, a prefix on the host is loaded layer by
layer while the rest is computed, and when running requests outgrow memory, who has generated least is retracted. Decode
steps between two events are one event.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import simpy
from simpy.events import ProcessGenerator

from kvflow.engine import Accounting, Coordinator, Guard, Programs, Tier, brought_tokens, digest_of_head
from kvflow.sim.admission import Everyone
from kvflow.sim.ahead import Ahead
from kvflow.sim.memory import Memory
from kvflow.sim.profile import Profile
from kvflow.sim.request import Request
from kvflow.sim.running import RunningBatch
from kvflow.sim.times import ServerTimes
from kvflow.sim.tree import Node
from kvflow.sim.watch import Watch

_RETRY_STEPS = 32


class Server:
    """Takes requests, answers them in simulated time.

    Args:
        programs: says whose requests are admitted; by default everyone's.
        ahead: loads contexts ahead of use.
        before_eviction: called before decisions are made, to bring predictions up to date.
    """

    def __init__(
        self,
        env: simpy.Environment,
        profile: Profile,
        memory: Memory,
        coordinator: Coordinator,
        accounting: Accounting,
        *,
        guard: Guard | None,
        programs: Programs | Everyone | None = None,
        ahead: Ahead | None = None,
        before_eviction: Callable[[], None] = lambda: None,
    ) -> None:
        self.times = ServerTimes()
        self._env = env
        self._profile = profile
        self._memory = memory
        self._tree = memory.tree
        self._coordinator = coordinator
        self._accounting = accounting
        self._watch = Watch(guard, memory, accounting.unit_tokens)
        self._programs = Everyone() if programs is None else programs
        self._in_turn = type(self._programs) is Everyone
        self._ahead = ahead
        self._before_eviction = before_eviction
        self._waiting: list[Request] = []
        self._chunked: Request | None = None
        self._running = RunningBatch()
        self._wake = env.event()
        if ahead is not None:
            ahead.on_arrived = self._look_again
        env.process(self._run())

    def submit(self, request: Request) -> ProcessGenerator:
        """Take a request (SimPy process): fetch what storage has of it, then queue it."""
        if ceil(request.whole.tokens / self._memory.page_tokens) > self._memory.device_pages:
            self.times.rejected += 1
            request.done.succeed(False)
            return
        if self._memory.storage_pages:
            node = self._tree.match(request.prompt, request.near, self._matchable(request))
            yield from self._memory.fetch(node)
        self._waiting.append(request)
        self._programs.arrived(request, request.claim, request.prompt.tokens, request.prompt.digests)
        self._look_again()

    def _look_again(self) -> None:
        """Somebody has come, or what somebody waits for: form a batch after the decode step that runs."""
        if not self._wake.triggered:
            self._wake.succeed()

    def _run(self) -> ProcessGenerator:
        while True:
            batch = self._admit()
            if self._ahead is not None:
                self._ahead.begin(len(self._running))
            if batch:
                yield from self._prefill(batch)
            elif self._running:
                yield from self._decode()
            else:
                self._wake = self._env.event()
                if self._waiting:  # its memory is held by copies under way
                    yield self._wake | self._env.timeout(0.005)
                else:
                    yield self._wake

    # -- admission

    def _admit(self) -> list[tuple[Request, int, int]]:
        """Form a prefill batch: (request, first token, last token + 1)."""
        if not self._waiting and self._chunked is None:
            return []
        self._before_eviction()
        batch: list[tuple[Request, int, int]] = []
        budget = self._profile.chunk_tokens
        if self._chunked is not None:
            request, self._chunked = self._chunked, None
            budget -= self._add(batch, request, budget)
        for request in self._programs.arrange(self._waiting, self._memory.plannable()):
            if budget <= 0 or self._chunked is not None:
                break
            if len(self._running) + len(batch) >= self._profile.max_running:
                break
            busy = bool(batch or self._running)
            if self._ahead is not None and self._ahead.passes_over(request, self._matchable(request), busy=busy):
                continue
            if not self._place(request, len(batch)):
                if self._programs.refused(request):
                    continue
                break
            self._waiting.remove(request)
            budget -= self._add(batch, request, budget)
        return batch

    def _add(self, batch: list[tuple[Request, int, int]], request: Request, budget: int) -> int:
        start, end = request.computed, min(request.goal, request.computed + budget)
        batch.append((request, start, end))
        if end < request.goal:
            self._chunked = request
        return end - start

    def _place(self, request: Request, admitted: int) -> bool:
        """Give a request its memory: lock its cached prefix, load back what is on the host, reserve the rest."""
        tree, memory = self._tree, self._memory
        node = tree.match(request.whole, request.near, self._matchable(request)).cached
        self._watch.looked_up(request)
        device = node.resident
        need = ceil(request.goal / memory.page_tokens) - device.end
        together = len(self._running) + admitted + 1
        reserve = max(together, self._profile.reserve_tokens * together // memory.page_tokens)
        alone = not self._running and not admitted
        available = memory.available_pages - tree.unlocked_pages(device)
        if need > available or (need + reserve > available and not alone):
            return False
        tree.lock(node)
        if node is not device:
            memory.make_room(node.end - device.end)
            request.load_until_s = memory.load_back(node, device)
        brought = brought_tokens(device.path())
        if self._ahead is not None:
            request.load_until_s = max(request.load_until_s, self._ahead.ready_s(node))
        page = memory.page_tokens
        memory.make_room(ceil(request.goal / page) - node.end + 1)  # a page more than it needs, as SGLang frees
        request.node = node
        request.computed = node.end * page
        request.hits = {"device": device.end * page, "host": (node.end - device.end) * page}
        request.brought_tokens = brought
        # pages are taken now, as a whole; they stop being private as the tree takes them over
        memory.private_tokens += request.goal - request.computed
        if request.counted:
            self._accounting.retracted(request.goal - request.computed)
            self.times.recompute_s += self._profile.compute_s(request.computed, request.goal)
        self._programs.started(request)
        if request.admitted_s is None:
            request.admitted_s = self._env.now
            self.times.queue_s.append(self._env.now - request.arrived_s)
        return True

    def _matchable(self, request: Request) -> int:
        """Pages that may be found in the cache: the last token has to be computed to generate from it."""
        return (request.goal - 1) // self._memory.page_tokens

    # -- prefill

    def _prefill(self, batch: list[tuple[Request, int, int]]) -> ProcessGenerator:
        profile, env = self._profile, self._env
        compute_s = profile.prefill_step_s
        loaded_s = env.now
        for request, start, end in batch:
            compute_s += profile.compute_s(start, end)
            loaded_s = max(loaded_s, request.load_until_s)
        stall_s = max(0.0, loaded_s - env.now - compute_s)
        self.times.prefill_s += compute_s
        self._accounting.counters.stall_s += stall_s
        yield env.timeout(compute_s + stall_s)
        known = {
            request: self._accounting.known(request.prompt.digests, request.found)
            for request, _, _ in batch
            if not request.counted
        }
        for request, _, end in batch:
            self._computed(request, end)
            if request in known:
                self._count(request, known[request])
            self._watch.computed(request, self._chunked)
            if end == request.goal:
                self._first_token(request)

    def _computed(self, request: Request, end: int) -> None:
        """Enter what has been computed of a request into the tree."""
        pages = end // self._memory.page_tokens
        request.computed = end
        self._enter(request, pages)

    def _enter(self, request: Request, pages: int) -> None:
        tree, memory = self._tree, self._memory
        old = request.node
        assert old is not None
        counted = old.end if request.tagged else 0
        node = tree.insert(request.whole, max(pages, old.end), old, counted=counted)
        tree.lock(node)
        tree.unlock(old)
        request.node = node
        memory.private_tokens -= (node.end - old.end) * memory.page_tokens
        memory.keep_copy(node, counted)
        if node.end > request.prompt.pages:  # SGLang enters the prompt once more, so that its end divides nodes
            tree.match(request.whole, node, request.prompt.pages)
        self._tag(request, node)

    def _tag(self, request: Request, node: Node) -> None:
        """Enter the request's claim, with a node boundary where its fixed prompt ends."""
        page = self._memory.page_tokens
        fixed = min(self._fixed_tokens(request), request.prompt.tokens) // page
        path = node.path_with_ends(page)
        if 0 < fixed <= node.end and all(end != fixed * page for _, end in path):
            self._tree.match(request.whole, None, fixed)
            path = node.path_with_ends(page)
        digests, declared = request.prompt.digests, request.claim.fixed_tokens or 0
        digest = digest_of_head(digests, declared, self._accounting.unit_tokens)
        self._coordinator.tag(
            request.claim,
            path,
            fixed * page,
            first=not request.tagged,
            again=request.again,
            fixed_digest=digest,
            digests=digests,
        )
        request.tagged, request.again = True, False

    def _fixed_tokens(self, request: Request) -> int:
        """Length of the fixed part of its prompt: as declared, or learned from other workflows, in whole units."""
        if request.fixed_tokens is None:
            claim = request.claim
            request.fixed_tokens = claim.fixed_tokens
            if claim.fixed_tokens is None:
                role = (claim.workflow_type, claim.agent)
                units = self._coordinator.boundary.observe(role, claim.workflow_id, request.prompt.digests)
                request.fixed_tokens = units * self._accounting.unit_tokens
        return request.fixed_tokens or 0

    def _count(self, request: Request, known: int) -> None:
        request.counted = True
        hits = request.hits
        recomputed = self._accounting.prompt(
            request.prompt.tokens, request.prompt.digests, {Tier(tier): count for tier, count in hits.items()}, known
        )
        self.times.recompute_s += self._profile.compute_s(request.found, request.found + recomputed)

    # -- decode

    def _first_token(self, request: Request) -> None:
        if request.first_token_s is None:
            request.first_token_s = self._env.now
            self.times.ttft_s.append(self._env.now - request.arrived_s)
        left = request.output_tokens - request.generated - 1
        if left <= 0:
            self._finish(request, 0)
            return
        self._running.join(request, left)
        self._memory.private_tokens += self._memory.page_tokens  # the page being filled

    def _decode(self) -> ProcessGenerator:
        """Run decode steps until a request ends, one arrives, or memory must be made."""
        count = len(self._running)
        steps = self._room_for(count, max(1, self._running.steps_left()))
        if not steps and count > 1:
            self._retract()
            return
        steps = max(1, steps)  # one that is alone fits, or it would have been rejected
        if self._waiting:  # none of them can be admitted before a request or a copy under way releases memory
            steps = min(steps, _RETRY_STEPS)
        step_s = self._profile.decode_s(count, self._running.context_tokens + count * steps / 2)
        began_s = self._env.now
        heeded = not (self._waiting and self._in_turn) or self._ahead is not None  # may whoever comes be the next?
        if steps > 1 and heeded:
            if self._wake.triggered:
                self._wake = self._env.event()
            yield self._wake | self._env.timeout(steps * step_s)
            done = ceil((self._env.now - began_s) / step_s - 1e-9)
            if done < steps:
                steps = max(1, done)
                yield self._env.timeout(max(0.0, began_s + steps * step_s - self._env.now))
        else:
            yield self._env.timeout(steps * step_s)
        self._memory.private_tokens += count * steps
        self.times.decode_s += steps * step_s
        for request, generated in self._running.advance(steps):
            self._finish(request, generated)

    def _room_for(self, count: int, steps: int) -> int:
        """How many of so many decode steps memory lasts for, making room as needed."""
        pages = ceil(count * steps / self._memory.page_tokens)
        if self._memory.free_pages >= pages:
            return steps
        self._before_eviction()
        steps = min(steps, max(16, 4 * self._memory.page_tokens // count))
        if self._memory.make_room(ceil(count * steps / self._memory.page_tokens)):
            return steps
        return min(steps, max(0, self._memory.free_pages) * self._memory.page_tokens // count)

    def _retract(self) -> None:
        """Take the memory of the request that has generated least; it starts again later, behind those that wait."""
        request = self._running.least()
        generated = self._running.leave(request)
        self._release(request, generated)
        request.generated += generated
        self.times.retractions += 1
        request.node, request.again = None, True
        self._coordinator.retracted(request.claim)
        self._programs.retracted(request)
        self._watch.retracted(request, self._chunked)
        self._waiting.append(request)
        self._programs.arrived(request, request.claim, request.goal, request.prompt.digests)

    def _release(self, request: Request, generated: int) -> None:
        """Give back what a request holds beyond the tree."""
        memory, node = self._memory, request.node
        assert node is not None
        private = request.goal - node.end * memory.page_tokens + generated
        memory.private_tokens -= private + memory.page_tokens
        self._tree.unlock(node)

    def _finish(self, request: Request, generated: int) -> None:
        """Answer a request and leave its context in the cache."""
        memory = self._memory
        if generated:
            memory.private_tokens -= memory.page_tokens
        self._enter(request, min(request.whole.pages, (request.goal + generated) // memory.page_tokens))
        node = request.node
        assert node is not None
        memory.private_tokens -= request.goal + generated - node.end * memory.page_tokens
        self._tree.unlock(node)
        self._coordinator.answered(request.claim)
        self._programs.left(request, request.output_tokens, request.whole.digests)
        self._accounting.cached(request.whole.digests[len(request.prompt.digests) :])
        self._watch.finished(request, self._chunked)
        request.done.succeed(True)
