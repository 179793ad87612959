"""Workflows of clients that say nothing: successive calls of one context, told by the prefix they share.

An agent that goes on sends its last prompt again, with the answer and what came of it behind. So a prompt that begins
with all of an earlier one continues it. One that begins like none is the first of another context: of the workflow
whose answers it quotes, or of a new one. What prompts begin with (the system prompt) says which agent they are of.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from kvflow.control.quotes import Quotes
from kvflow.control.thread import HEAD, TEMPLATE, End, Mark, Thread
from kvflow.control.workflow import INFERRED
from kvflow.engine import digests
from kvflow.engine.boundary import common_prefix
from kvflow.hints import StepFact

AGENT = "agent"
"""The one that an inferred workflow begins with; others are named after their type, as workflows are."""
_MAX_ENDS = 64
"""Ends of earlier prompts by which a thread is still known: clients cut the end of a context off, and go on."""
_MAX_MARKS = 256
_ENDED_ENDS, _ENDED_READ = 8, 1024
"""What is kept of these for a workflow that is over, and may come back."""
_LATEST = 4
"""Prompts of an agent, of those that end differently, that tell what its chat template ends them with."""
_ALIKE = 256
"""Ends that are told apart by less than a unit."""
_MAX_READ = 8192
"""Fingerprints of prompts, of about 29,000 tokens: what an agent has read it does not say, it repeats it."""


class Threads:
    """Contexts of one server that nobody declares.

    A context that quotes what a workflow has said is one of that workflow's agents: programs hand answers on. If it
    has had that agent before, and contexts of the agent do not grow, it is its next step; if they do, it is a context
    beside the other, and so a sub-workflow.

    Args:
        most: threads to remember; the one idle for longest is forgotten.
        unit: tokens, or bytes, that are digested at once, TEMPLATE at least; shorter prompts are not recognised.
        quotes: finds answers in prompts; None to take every context for a workflow of its own.
    """

    def __init__(self, most: int, unit: int = 64, quotes: Quotes | None = None) -> None:
        self._most = most
        self._unit = unit
        self._quotes = quotes
        self._count = 0
        self._threads: OrderedDict[tuple[str, str], Thread] = OrderedDict()
        self._agents: dict[str, set[str]] = {}
        self._endings: OrderedDict[tuple[str, str], list[tuple[int, ...]]] = OrderedDict()
        self._grow_on: OrderedDict[str, None] = OrderedDict()
        self._by_end: defaultdict[tuple[int, tuple[int, ...]], list[tuple[Thread, End]]] = defaultdict(list)
        self._by_mark: defaultdict[Mark, set[Thread]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._threads)

    def __contains__(self, workflow_id: object) -> bool:
        return workflow_id in self._agents

    def asks(
        self, prompt: Sequence[int], namespace: str, kind: str = "", marks: Sequence[str] = (), gram: int = 6
    ) -> StepFact | None:
        """Take a request, and say which step of which workflow it is, as a client could have said.

        Args:
            prompt: token ids, or bytes of UTF-8.
            namespace: what keeps equal prompts apart (tenant, cache salt, adapter).
            kind: what names its agent, e.g. its system prompt; empty to go by what the prompt begins with.
            marks: names that hardly any other context has, e.g. ids of tool calls whose results it brings: they tell
                where a prompt belongs that begins like none.
            gram: so many tokens, or bytes, in a row are enough to tell that a prompt quotes an answer.

        Returns:
            None for a prompt too short to be recognised.

        Cost: a digest of the prompt, about 1 ms for 40 k tokens, and fingerprints of what is new in it.
        """
        if len(prompt) < self._unit:
            return None
        name = f"{namespace}\0{kind}"
        chain = [_named(name), *digests(prompt, name, self._unit)]
        named = {(namespace, kind, mark) for mark in marks[-_MAX_MARKS:]}
        whose = f"{chain[0] if kind else chain[1]:016x}"
        template = self._template((namespace, whose), tuple(prompt[-TEMPLATE:]))
        thread = self._continued(prompt, chain, named, template)
        if thread is not None:
            self._grows(thread.kind)
            new = self._marks(prompt[min(len(prompt), thread.ends[-1].length) :], gram)
        else:
            new = self._marks(prompt, gram)
            thread = self._next(whose, new, namespace, gram)
            thread.brought = named
        thread.read.extend(new)
        del thread.read[:-_MAX_READ]
        self._threads.move_to_end((thread.workflow_id, thread.agent))
        units = (len(prompt) - TEMPLATE) // self._unit  # the next prompt may lack the rest
        self._grow(thread, End(chain[units], tuple(prompt[units * self._unit :]), len(prompt)), named)
        thread.asking += 1
        thread.over = False
        return StepFact(
            workflow_id=thread.workflow_id,
            workflow_type=thread.workflow_type,
            agent=thread.agent,
            parent_workflow_id=thread.parent_id,
        )

    def answered(self, workflow_id: str, agent: str) -> None:
        """One of an agent's requests has been answered, or given up."""
        thread = self._threads.get((workflow_id, agent))
        if thread is not None:
            thread.asking = max(0, thread.asking - 1)  # it may be another one by now, if so many came meanwhile

    def said(self, workflow_id: str, agent: str, answer: Sequence[int]) -> None:
        """Take note of what an agent has answered, in tokens or bytes as its prompt."""
        thread = self._threads.get((workflow_id, agent))
        if thread is None or self._quotes is None:
            return
        program_id = thread.parent_id or workflow_id
        if program_id in self._agents:
            self._quotes.said(self._marks(answer, thread.gram), frozenset(thread.read), thread.namespace, program_id)

    def ended(self, workflow_id: str) -> None:
        """A workflow is over, or seems to be: what quotes it begins another one."""
        if self._quotes is not None:
            self._quotes.ended(workflow_id)
        for agent in self._agents.get(workflow_id, ()):
            thread = self._threads[workflow_id, agent]
            thread.over = True
            del thread.read[:-_ENDED_READ]
            while len(thread.ends) > _ENDED_ENDS:
                self._drop(thread, thread.ends.pop(0))

    def _marks(self, text: Sequence[int], gram: int) -> Sequence[int]:
        return self._quotes.marks(text, gram) if self._quotes is not None else ()

    def _template(self, agent: tuple[str, str], ending: tuple[int, ...]) -> int:
        """Length of what a prompt ends with as its agent's latest ones do, TEMPLATE at most; 0 for the first."""
        endings = self._endings.setdefault(agent, [])
        template = min((common_prefix(ending[::-1], other[::-1]) for other in endings), default=0)
        self._endings.move_to_end(agent)
        if len(self._endings) > self._most:
            self._endings.popitem(last=False)
        if ending not in endings:
            endings.append(ending)
            del endings[:-_LATEST]
        return template

    def _continued(self, prompt: Sequence[int], chain: Sequence[int], marks: set[Mark], template: int) -> Thread | None:
        """The thread whose prompt this one begins with, or whose marks alone it has, if it waits for no answer."""
        for units in range(len(chain) - 1, -1, -1):
            start = units * self._unit
            for head in (tuple(prompt[start : start + HEAD]), ()):
                for thread, end in reversed(self._by_end.get((chain[units], head), ())):
                    if thread.asking or (end.length == len(prompt) and thread.has_gone_on_from(end)):
                        continue
                    if end.continued_by(tuple(prompt[start : start + len(end.rest)]), len(prompt), template):
                        return thread
        known = [self._by_mark[mark] for mark in marks if mark in self._by_mark]
        named = {thread for threads in known if len(threads) == 1 for thread in threads}
        return next((thread for thread in named if len(named) == 1 and not thread.asking), None)

    def _next(self, kind: str, marks: Sequence[int], namespace: str, gram: int) -> Thread:
        """The thread of a context that begins with a prompt of these fingerprints."""
        workflow_id = self._quotes.quoted(marks, namespace, kind) if self._quotes is not None else None
        if workflow_id is None or workflow_id not in self._agents:
            return self._begin(kind, namespace, gram)
        workflow_type = workflow_id.rsplit("/", 1)[0]
        agent = AGENT if workflow_type == INFERRED + kind else kind
        thread = self._threads.get((workflow_id, agent))
        if thread is None:
            return self._add(Thread(workflow_id, workflow_type, agent, kind, namespace, gram))
        if thread.asking or kind in self._grow_on:
            return self._begin(kind, namespace, gram, parent_id=workflow_id)
        return thread

    def _begin(self, kind: str, namespace: str, gram: int, parent_id: str | None = None) -> Thread:
        self._count += 1
        workflow_type = INFERRED + kind
        workflow_id = f"{workflow_type}/{self._count}"
        return self._add(Thread(workflow_id, workflow_type, AGENT, kind, namespace, gram, parent_id))

    def _add(self, thread: Thread) -> Thread:
        self._threads[thread.workflow_id, thread.agent] = thread
        self._agents.setdefault(thread.workflow_id, set()).add(thread.agent)
        if len(self._threads) > self._most:
            self._forget(self._threads.popitem(last=False)[1])
        return thread

    def _grows(self, kind: str) -> None:
        """Note that contexts of an agent go on."""
        self._grow_on[kind] = None
        self._grow_on.move_to_end(kind)
        if len(self._grow_on) > self._most:
            self._grow_on.popitem(last=False)

    def _grow(self, thread: Thread, end: End, marks: set[Mark]) -> None:
        if end in thread.ends:
            thread.ends.remove(end)
            self._drop(thread, end)
        alike = self._by_end[end.key]
        alike.append((thread, end))
        del alike[:-_ALIKE]
        thread.ends.append(end)
        thread.began = thread.began or end
        while len(thread.ends) > _MAX_ENDS:
            self._drop(thread, thread.ends.pop(0))
        marks = marks - thread.brought
        for mark in marks:
            self._by_mark[mark].add(thread)
        for mark in thread.marks - marks:
            self._unmark(thread, mark)
        thread.marks = marks

    def _forget(self, thread: Thread) -> None:
        for end in thread.ends:
            self._drop(thread, end)
        for mark in thread.marks:
            self._unmark(thread, mark)
        self._agents[thread.workflow_id].discard(thread.agent)
        if not self._agents[thread.workflow_id]:
            del self._agents[thread.workflow_id]
            self.ended(thread.workflow_id)

    def _drop(self, thread: Thread, end: End) -> None:
        alike = self._by_end[end.key]
        alike[:] = [each for each in alike if each != (thread, end)]
        if not alike:
            del self._by_end[end.key]

    def _unmark(self, thread: Thread, mark: Mark) -> None:
        threads = self._by_mark[mark]
        threads.discard(thread)
        if not threads:
            del self._by_mark[mark]


def _named(name: str) -> int:
    """What stands for an agent that has a name, and for prompts of which nothing is digested yet."""
    return xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
