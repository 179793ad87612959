"""Cross-agent reuse: what of a prompt is put in instead of computed, and what is learned from what was computed.

Knows tensors, not SGLang: whoever runs the model asks for a :class:`Plan`, puts in what :meth:`Reuse.fill` gives for
its grafts, and shows afterwards what the prompt's KV has become. Every decision depends on the order of calls alone, so
that tensor-parallel ranks decide alike; the one thing they have to tell each other is distances (``total``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from kvflow.reuse.anchors import Anchor, AnchorPool, Weighing
from kvflow.reuse.conversations import Continued, Conversations
from kvflow.reuse.correct import Corrector
from kvflow.reuse.gate import Door, QualityGate
from kvflow.reuse.keeping import Keeper, Read
from kvflow.reuse.kv import KV
from kvflow.reuse.memory import HostMemory
from kvflow.reuse.outcomes import Outcomes
from kvflow.reuse.plan import Counters, Found, Lesson, Plan, PoolKey
from kvflow.reuse.prompt import Mode, Prompt, Slot, SlotKey
from kvflow.reuse.repair import without_first
from kvflow.reuse.rotation import Rotary
from kvflow.reuse.runs import following, plain, slots_of, tokens_of, worth_remembering
from kvflow.reuse.segments import SHARED_TOKENS, Match, Origin, Segment, SegmentStore
from kvflow.reuse.splice import Graft


class Reuse:
    """Segments and anchors of one model (one rank's heads of it).

    Args:
        rotary: the model's rotary embedding.
        memory: bound of all that is remembered.
        min_tokens: shorter runs are computed.
        gate: says which slots may be spliced.
        outcomes: what applications say of them.
        anchors: V of :class:`AnchorPool`.
        entropy: its γ.
        total: adds up a vector over tensor-parallel ranks.
    """

    def __init__(
        self,
        rotary: Rotary,
        memory: HostMemory,
        *,
        gate: QualityGate | None = None,
        outcomes: Outcomes | None = None,
        min_tokens: int = 64,
        anchors: int = 20,
        entropy: float = 0.3,
        total: Callable[[torch.Tensor], torch.Tensor] = lambda vector: vector,
    ) -> None:
        self.memory = memory
        self.segments = SegmentStore(memory)
        self.pools: dict[PoolKey, AnchorPool] = {}
        self.counters = Counters()
        self.gate = gate or QualityGate()
        self.outcomes = outcomes or Outcomes()
        self._corrector = Corrector(rotary)
        self._keeper = Keeper(self._corrector)
        self._min_tokens = max(min_tokens, SHARED_TOKENS)
        self.conversations = Conversations(memory, self._keeper, self._min_tokens)
        self._anchors = anchors
        self._entropy = entropy
        self._total = total

    def plan(self, prompt: Prompt, cached_tokens: int) -> Plan:
        """Decide what of a prompt is put in.

        Args:
            prompt: the request.
            cached_tokens: at its start, found in the prefix cache: exact, and not touched.
        """
        self.counters.prompts += not prompt.trial
        continued = self.conversations.continued(prompt, cached_tokens)
        if continued is not None and not all(map(self.gate.lets_in, continued.slots)):
            continued = None
        known_tokens = continued.end if continued is not None else cached_tokens
        slots = [slot for slot in prompt.slots if continued is None or slot.start >= continued.end]
        found = {slot: self._matches(prompt, slot, known_tokens) for slot in slots}
        doors = self._doors(prompt, found)
        gaps = [gap for slot, matches in found.items() for gap in self._gaps(slot, matches)]
        grafts, lessons = self._served(prompt, found, doors)
        plan = Plan(exact_tokens=len(prompt.tokens), lessons=tuple(lessons), reason="")
        kept = [part for graft in grafts if (part := self._worth(prompt, graft, known_tokens)) is not None]
        tried = [key for key in slots_of(prompt, kept) if doors.get(key) is Door.TRIAL]
        if tried:  # one at a time, or one that fails would keep the others closed
            trial = (min(tried, key=self.gate.rest),)
            plan = replace(plan, check=self._sampled(trial), reason="tried on copies after a rest")
        elif self._compared(prompt):
            plan = replace(plan, reason="for other workflows to be compared with")
        elif kept or (continued is not None and not lessons):
            plan = self._spliced(prompt, plan, kept, None if lessons else continued, cached_tokens)
        else:
            plan = replace(plan, reason=_why_nothing(doors, grafts, lessons))
        if not prompt.trial and (plan.spliced or self._compared(prompt)):
            for workflow_id in filter(None, dict.fromkeys((prompt.workflow_id, prompt.program_id))):
                self.outcomes.served(workflow_id, {*doors, *plan.slots}, plan.slots)
        return replace(plan, missing=tuple(worth_remembering(plan, gaps, found)))

    def put(self, prompt: Prompt, plan: Plan) -> None:
        """Count what is being put into a prompt; not again when it has to be put in anew."""
        if not prompt.trial:
            self.counters.spliced += 1
            self.counters.grafted_tokens += tokens_of(graft for graft in plan.grafts if not graft.as_it_was)
            self.counters.continued_tokens += tokens_of(graft for graft in plan.grafts if graft.as_it_was)

    def _compared(self, prompt: Prompt) -> bool:
        """Whether a prompt is computed for the sake of outcomes: all of a program, or nothing of it."""
        program_id = prompt.program_id or prompt.workflow_id
        return not prompt.trial and self.outcomes.compares(program_id, prompt.workflow_type)

    def _sampled(self, slots: tuple[SlotKey, ...]) -> tuple[SlotKey, ...]:
        return slots if self.gate.samples(slots) else ()

    def _spliced(
        self, prompt: Prompt, plan: Plan, new: list[Graft], continued: Continued | None, cached_tokens: int
    ) -> Plan:
        before = continued.grafts if continued is not None else ()
        slots = slots_of(prompt, new)
        if continued is not None:
            slots = tuple(dict.fromkeys((*continued.slots, *slots)))
        return replace(
            plan,
            exact_tokens=max(cached_tokens, (*before, *new)[0].start),
            spliced=True,
            continued_tokens=continued.end if continued is not None else 0,
            grafts=(*before, *new),
            slots=slots,
            check=() if prompt.trial else self._sampled(slots),
            reason=f"{prompt.method.mode}: {len(new)} runs{', and what its last turn had' if before else ''}",
        )

    def _served(
        self, prompt: Prompt, found: dict[Slot, list[Match]], doors: dict[SlotKey, Door]
    ) -> tuple[list[Graft], list[Lesson]]:
        """What may be put in for the texts at hand, and what would be learned from those that may not."""
        grafts: list[Graft] = []
        lessons: list[Lesson] = []
        ends = [*(slot.start for slot in found), len(prompt.tokens)][1:]
        for (slot, matches), next_slot in zip(found.items(), ends, strict=True):
            closed = doors.get(prompt.key(slot)) is Door.CLOSED
            for match, after in zip(matches, self._afters(slot, matches, next_slot), strict=True):
                self._serve(prompt, Found(slot=slot, match=match, after=after, closed=closed), grafts, lessons)
        return grafts, lessons

    def feedback(self, workflow_id: str, outcome: float) -> list[SlotKey]:
        """Take an outcome of a workflow, from 0 to 1; returns slots that are computed from now on for it."""
        worse = self.outcomes.report(workflow_id, outcome)
        for slot in worse:
            self.gate.close(slot)
            self.distrust(slot)
        return worse

    def report(self) -> list[dict[str, object]]:
        """State of every slot: its door, and what checks and applications say of it."""
        return [
            {"namespace": key[0], "workflow_type": key[1], "slot": key[2], **state, **self.outcomes.means(key)}
            for key, state in self.gate.report().items()
        ]

    def distrust(self, slot: SlotKey) -> None:
        """The quality gate has closed a slot: what its anchors say is forgotten, and learned again."""
        self.conversations.distrust(slot)
        for key in [key for key in self.pools if key[:3] == slot]:
            for anchor in self.pools.pop(key).anchors:
                self.memory.release(anchor)

    def fill(self, prompt: Prompt, graft: Graft, device: torch.device) -> KV:
        """Compute what is put in for a graft, see :meth:`~kvflow.reuse.correct.Corrector.fill`."""
        return self._corrector.fill(graft, device, moved=prompt.method.mode is not Mode.NAIVE)

    def computed(self, prompt: Prompt, plan: Plan, read: Read) -> None:
        """Learn from a prompt that has been computed: new texts, and offsets of known ones.

        Args:
            prompt: the request.
            plan: what was decided for it.
            read: its KV.
        """
        if prompt.trial:
            return
        for start, end in plan.missing:
            self._remember(prompt, start, end, "prompt", end <= plan.exact_tokens, read)
        for lesson in plan.lessons:
            self._learn(prompt, lesson, read)

    def answered(self, prompt: Prompt, plan: Plan, tokens: torch.Tensor, read: Read) -> None:
        """Remember an answer by the KV that decoding left behind, and the conversation for its next turn.

        Source: RelayCaching (arXiv 2603.13289): the upstream agent's decode-phase KV serves downstream prompts.

        Args:
            prompt: whose answer it is.
            plan: what became of it.
            tokens: [n] int64, prompt and answer as far as there is KV.
            read: their KV.
        """
        start = len(prompt.tokens)
        if len(tokens) - start >= self._min_tokens:
            self._remember(prompt, start, len(tokens), "answer", not plan.spliced, read, tokens)
        self.conversations.answered(prompt, plan, tokens, read)

    def clear(self) -> None:
        """Forget everything: the model's weights may have changed."""
        self.segments.clear()
        self.conversations.clear()
        self.pools.clear()
        self.memory.clear()

    def _matches(self, prompt: Prompt, slot: Slot, cached_tokens: int) -> list[Match]:
        if not prompt.trial:
            self.counters.slot_tokens += max(0, slot.end - max(slot.start, cached_tokens))
        return self.segments.find(prompt.namespace, prompt.tokens, slot.start, slot.end, self._min_tokens)

    def _gaps(self, slot: Slot, matches: list[Match]) -> list[tuple[int, int]]:
        """What of a slot is not at hand, where that is worth being remembered."""
        starts = [slot.start, *(match.end for match in matches)]
        ends = [*(match.start for match in matches), slot.end]
        return [(start, end) for start, end in zip(starts, ends, strict=True) if end - start >= self._min_tokens]

    def _afters(self, slot: Slot, matches: list[Match], next_slot: int) -> list[int]:
        """Where what follows each text ends: at the next one, or before the next slot if nothing new stands between."""
        if not matches:
            return []
        rest = slot.end - matches[-1].end
        return [*(match.start for match in matches[1:]), slot.end if rest >= self._min_tokens else next_slot]

    def _doors(self, prompt: Prompt, found: dict[Slot, list[Match]]) -> dict[SlotKey, Door]:
        """What the quality gate says to each slot whose text is at hand."""
        names = dict.fromkeys(prompt.key(slot) for slot, matches in found.items() if matches)
        return {} if prompt.trial else {key: self.gate.door(key) for key in names}

    def _serve(self, prompt: Prompt, found: Found, grafts: list[Graft], lessons: list[Lesson]) -> None:
        """Decide for one text: put in, or computed, so that its offset is known the next time.

        An offset is only true if all before it is exact, so what was to be put in before is computed as well.
        """
        match, slot = found.match, found.slot
        if prompt.method.mode is not Mode.KVCOMM:
            if not found.closed:
                grafts.append(plain(match))
            return
        key = (*prompt.key(slot), prompt.agent, match.segment.origin)
        pool = self.pools.get(key)
        place = match.start - slot.start
        weighing = Weighing(reason="closed by the quality gate" if found.closed else "few anchors")
        if pool and not found.closed:
            weighing = self._weigh(pool, match, place)
        if not weighing.anchors:
            if prompt.trial:  # a copy teaches nothing: what was put in before it is compared
                return
            self.counters.dense[weighing.reason] = self.counters.dense.get(weighing.reason, 0) + 1
            grafts.clear()
            lessons.append(Lesson(pool=key, found=found, reason=weighing.reason))
            return
        anchors = weighing.anchors
        grafts.append(replace(plain(match), anchors=anchors, place=place))
        grafts += following(prompt, match.end, found.after, anchors)

    def _weigh(self, pool: AnchorPool, match: Match, place: int) -> Weighing:
        tokens = match.end - match.start
        sketch = match.segment.value_sketch[match.offset : match.offset + tokens]
        weighing = pool.weigh(self._total(pool.distances(sketch, place)))
        for anchor, _ in weighing.anchors:
            self.memory.touch(anchor)
        return weighing

    def _worth(self, prompt: Prompt, graft: Graft, cached_tokens: int) -> Graft | None:
        """The part of a graft that is neither cached nor repaired, if it is worth the while."""
        method = prompt.method
        part = without_first(graft, method.repair_tokens) if graft.segment is not None else graft
        part = part.within(cached_tokens, len(prompt.tokens)) if part is not None else None
        return part if part is not None and part.end - part.start >= self._min_tokens // 2 else None

    def _remember(
        self,
        prompt: Prompt,
        start: int,
        end: int,
        part: str,
        exact: bool,
        read: Read,
        tokens: torch.Tensor | None = None,
    ) -> None:
        tokens = prompt.tokens if tokens is None else tokens
        if end - start < self._min_tokens or self._knows(prompt.namespace, tokens, start, end, exact):
            return
        if not self._fits(start, end, read):
            return
        kv, sketch = self._keeper.text(start, end, read)
        segment = Segment(
            tokens=tokens[start:end].clone(),
            kv=kv,
            position=start,
            origin=Origin(workflow_type=prompt.workflow_type, agent=prompt.agent, part=part),
            exact=exact,
            value_sketch=sketch,
        )
        if self.segments.put(prompt.namespace, segment):
            self.counters.segments += 1

    def _knows(self, namespace: str, tokens: torch.Tensor, start: int, end: int, exact: bool) -> bool:
        """Whether a text is at hand by now: prompts that were computed side by side may have brought it, too."""
        matches = self.segments.find(namespace, tokens, start, end, self._min_tokens)
        return any((match.start, match.end) == (start, end) and match.segment.exact >= exact for match in matches)

    def _fits(self, start: int, end: int, read: Read) -> bool:
        """Make room for the KV of these tokens, see :meth:`~kvflow.reuse.memory.HostMemory.fits`."""
        return self.memory.fits(read(start, start + 1).bytes_of(end - start))

    def _learn(self, prompt: Prompt, lesson: Lesson, read: Read) -> None:
        match, after = lesson.found.match, lesson.found.after
        start, own = match.start - lesson.found.slot.start, tuple(prompt.tokens[match.start : match.end].tolist())
        pool = self.pools.get(lesson.pool)
        held = slice(match.offset, match.offset + match.end - match.start)
        sketch = match.segment.value_sketch[held].clone()
        old = next((one for one in pool.anchors if (one.start, one.tokens) == (start, own)), None) if pool else None
        if old is not None and torch.equal(old.value_sketch, sketch):
            return  # prompts that were computed side by side teach the same
        if not self._fits(match.start, after, read):
            return
        offset = self._keeper.offset(match, read)
        homes = self._keeper.homes(match.end, after, read) if after - match.end >= self._min_tokens else None
        anchor = Anchor(
            start=start,
            tokens=own,
            value_sketch=sketch,
            offset=offset,
            follows=tuple(prompt.tokens[match.end : after].tolist()),
            following=homes,
        )
        if not self.memory.hold(anchor, anchor.nbytes, lambda: self._drop(lesson.pool, anchor)):
            return
        if old is not None and pool is not None and old in pool.anchors:  # its text's base has become another since
            pool.anchors.remove(old)
            self.memory.release(old)
        gone = self.pools.setdefault(lesson.pool, AnchorPool(self._anchors, self._entropy)).add(anchor)
        if gone is not None:
            self.memory.release(gone)
        self.counters.learned += 1

    def _drop(self, key: PoolKey, anchor: Anchor) -> None:
        pool = self.pools[key]
        pool.anchors.remove(anchor)
        if not pool.anchors:
            del self.pools[key]


def _why_nothing(doors: dict[SlotKey, Door], grafts: list[Graft], lessons: list[Lesson]) -> str:
    if lessons:
        return lessons[0].reason
    if not doors:
        return "none of its texts is known"
    return "what is known is cached, or too short" if grafts else "closed by the quality gate"
