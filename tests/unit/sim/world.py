"""A small simulated world for tests: a profile, programs made at random, and a server open to inspection."""

from __future__ import annotations

import random
from typing import Any

import simpy

from kvflow.config import Settings
from kvflow.engine import Accounting, Coordinator, Guard, PromptClaim
from kvflow.sim import Profile, Waits
from kvflow.sim.brains import LearnedBrain
from kvflow.sim.client import Clients
from kvflow.sim.context import Pager
from kvflow.sim.memory import Memory
from kvflow.sim.node import Node, backed_up
from kvflow.sim.request import Request
from kvflow.sim.server import Server
from kvflow.trace import Join, LLMCall, Piece, Program, Prompt, Spawn, ToolEnd, ToolStart, WorkflowStart

PAGE = 16
PROFILE = Profile(
    name="test",
    prefill_step_s=0.002,
    prefill_token_s=1e-4,
    attention_token_s=1e-8,
    decode_step_s=0.01,
    decode_sequence_s=1e-4,
    decode_context_token_s=1e-8,
    load_token_s=1e-5,
    backup_token_s=1e-5,
    storage_token_s=5e-5,
    chunk_tokens=256,
    max_running=4,
    reserve_tokens=32,
)


class Author:
    """Writes small programs: turns that grow, keep a part or start afresh, tools, and threads that are joined."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def programs(self, count: int) -> list[Program]:
        return [self._program(f"w{number}") for number in range(count)]

    def _program(self, name: str) -> Program:
        kind = self._random.choice(("review", "research"))
        program = Program(start=WorkflowStart(workflow=name, type=kind))
        program.threads["main"] = self._thread(name, kind, "main", 3)
        if self._random.random() < 0.4:
            program.threads["side"] = self._thread(name, kind, "side", 2)
            program.threads["main"][1:1] = [Spawn(workflow=name, child="side")]
            program.threads["main"].append(Join(workflow=name, child="side"))
        return program

    def _thread(self, name: str, kind: str, thread: str, turns: int) -> list[Any]:
        events: list[Any] = []
        lengths: dict[str, int] = {}
        for turn in range(self._random.randrange(1, turns + 1)):
            agent = self._random.choice(("planner", "coder"))
            call, output_tokens = f"{thread}{turn}", self._random.choice((0, 1, 7, 40))
            prompt = self._prompt(name, kind, agent, call, lengths)
            lengths[call] = prompt.tokens + output_tokens
            events.append(
                LLMCall(
                    workflow=name,
                    thread=thread,
                    agent=agent,
                    call=call,
                    prompt=prompt,
                    output=f"{name}/{call}/out",
                    output_tokens=output_tokens,
                    fixed_tokens=100,
                    delay_s=self._random.choice((None, 0.0, 0.3)),
                )
            )
            if self._random.random() < 0.6:
                tool = f"{call}/tool"
                events.append(ToolStart(workflow=name, thread=thread, agent=agent, tool_call=tool, tool="bash"))
                seconds = self._random.choice((None, 0.2, 2.0))
                events.append(ToolEnd(workflow=name, thread=thread, tool_call=tool, seconds=seconds))
        return events

    def _prompt(self, name: str, kind: str, agent: str, call: str, lengths: dict[str, int]) -> Prompt:
        new = Piece(f"{name}/{call}", self._random.randrange(1, 90))
        if not lengths or self._random.random() < 0.2:
            return Prompt(add=(Piece(f"{kind}/{agent}", 100), new))
        base = self._random.choice(list(lengths))
        keep = lengths[base] if self._random.random() < 0.7 else self._random.randrange(1, lengths[base] + 1)
        return Prompt(base=base, keep_tokens=keep, add=(new,) if self._random.random() < 0.9 else ())


class World:
    """A server with clients, as :func:`kvflow.sim.simulate` puts them together, open to inspection."""

    def __init__(
        self,
        *,
        policy: str = "cost",
        device: int = 4096,
        host: int = 0,
        storage: int = 0,
        profile: Profile = PROFILE,
        programs: Any = None,
    ) -> None:
        self.env = simpy.Environment()
        self.pager = Pager(PAGE, 4)
        self.coordinator = Coordinator(policy, profile.costs, backed_up=backed_up)
        self.accounting = Accounting(self.pager.unit_tokens)
        self.guard = Guard(profile.costs, self.pager.unit_tokens)
        self.memory = Memory(
            self.env,
            profile,
            self.coordinator,
            self.accounting,
            page_tokens=PAGE,
            device_tokens=device,
            host_tokens=host,
            storage_tokens=storage,
            guard=self.guard,
        )
        self.brain = LearnedBrain(self.env, Settings(), self.coordinator)
        self.server = Server(
            self.env,
            profile,
            self.memory,
            self.coordinator,
            self.accounting,
            guard=self.guard,
            programs=programs,
            before_eviction=self.brain.refresh,
        )

    def play(self, programs: list[Program], *, at_once: int = 4) -> Clients:
        clients = Clients(self.env, self.server, self.brain, self.pager, waits=Waits(tool_s=0.1), seed=0)
        shares = [list(enumerate(programs))[start::at_once] for start in range(at_once)]
        workers = [self.env.process(clients.work(iter(share))) for share in shares]
        self.env.run(until=self.env.all_of(workers))
        self.env.run(until=self.env.now + 1000)
        return clients

    def ask(self, *pieces: Piece, output_tokens: int = 4, after: Request | None = None) -> Request:
        """Ask for one answer and wait for it."""
        request = self.request(*pieces, output_tokens=output_tokens, after=after)
        self.env.process(self.server.submit(request))
        self.env.run(until=request.done)
        return request

    def request(self, *pieces: Piece, output_tokens: int = 4, after: Request | None = None) -> Request:
        before = after.whole if after is not None else self.pager.empty()
        prompt = self.pager.extend(before, before.tokens, pieces)
        whole = self.pager.extend(prompt, prompt.tokens, [Piece(f"out{id(prompt)}", output_tokens)])
        return Request(
            claim=PromptClaim(workflow_id="w", workflow_type="t", agent="a"),
            prompt=prompt,
            whole=whole,
            output_tokens=output_tokens,
            near=after.node if after is not None else None,
            arrived_s=self.env.now,
            done=self.env.event(),
        )

    def nodes(self) -> list[Node]:
        found, stack = [], list(self.memory.tree.root.children.values())
        while stack:
            found.append(stack.pop())
            stack.extend(found[-1].children.values())
        return found

    def check_idle(self) -> None:
        memory, tree = self.memory, self.memory.tree
        assert memory.private_tokens == 0
        assert tree.protected_pages == 0
        assert all(node.locks == node.host_locks == 0 for node in self.nodes())
        assert memory.free_pages + tree.device_pages == memory.device_pages
        assert tree.host_pages <= memory.host_pages
        assert tree.storage_pages <= memory.storage_pages
        for node in self.nodes():
            assert node.parent is not None
            assert not node.on_host or node.parent.parent is None or node.parent.on_host
        assert self.guard.running == 0
