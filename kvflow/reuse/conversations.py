"""Conversations that go on: the KV of a spliced prompt and its answer, kept for the next turn of the same agent.

Nothing behind a text that was put in is published in the prefix cache, so that of the next turn all of it would be put
in, corrected and computed again. Instead it is put in as it was, by what the turn before has left: at its place, with
its corrections and repairs. It is kept for the workflow and agent that it belongs to, and for nobody else.

Whether a conversation goes on is not known when it has to be kept. So an agent's conversations are once one of them
has gone on, and until several in a row have not.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch

from kvflow.reuse.fingerprints import common_run
from kvflow.reuse.keeping import Keeper, Read
from kvflow.reuse.memory import HostMemory
from kvflow.reuse.plan import Plan
from kvflow.reuse.prompt import Method, Prompt, SlotKey
from kvflow.reuse.segments import Origin, Segment
from kvflow.reuse.splice import Graft

_BRANCHES = 4
"""Conversations of one agent in a workflow, as of parallel steps."""
_IN_VAIN = 8
"""So many conversations of an agent that were kept in a row and did not go on, and no more are."""
_REMEMBERED = 4096
"""Agents of workflows, and of workflow types; their names come from clients."""

_Key = tuple[str, str, str, Method]
_Kind = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """What of a prompt the turn before has left.

    Attributes:
        end: the token after the last of it.
        grafts: not empty, in order.
        slots: whose texts are in it.
    """

    end: int
    grafts: tuple[Graft, ...]
    slots: tuple[SlotKey, ...]


@dataclass(slots=True, eq=False)
class _Conversation:
    """The latest turn.

    Attributes:
        prompt_tokens: length of its prompt ...
        mark: ... and a digest of it.
        slots: whose texts have been put in.
        pieces: the KV that depend on them, in order and without gaps; those of a turn that went on, and what is new.
    """

    prompt_tokens: int = 0
    mark: bytes = b""
    slots: tuple[SlotKey, ...] = ()
    pieces: list[Segment] = field(default_factory=list)


class Conversations:
    """Conversations of all agents. Decides by the order of calls, so that ranks decide alike.

    Args:
        memory: what they share with everything else that reuse remembers.
        keeper: brings KV there.
        min_tokens: less is computed.
    """

    def __init__(self, memory: HostMemory, keeper: Keeper, min_tokens: int) -> None:
        self._memory = memory
        self._keeper = keeper
        self._min_tokens = min_tokens
        self._known: OrderedDict[_Key, list[_Conversation]] = OrderedDict()
        self._in_vain: OrderedDict[_Kind, int] = OrderedDict()

    def __len__(self) -> int:
        """How many there are of which KV is kept."""
        return sum(bool(conversation.pieces) for branches in self._known.values() for conversation in branches)

    def continued(self, prompt: Prompt, cached_tokens: int) -> Continued | None:
        """Find what the turn before has left of a prompt; None if that is next to nothing.

        Args:
            prompt: the request.
            cached_tokens: at its start, found in the prefix cache.
        """
        before = self._before(prompt)
        if before is None:
            return None
        if not prompt.trial and len(prompt.tokens) > before.prompt_tokens:
            self._note(prompt, in_vain=0)
        end = _common_tokens(before, prompt.tokens)
        whole = [_as_it_was(piece) for piece in before.pieces]
        grafts = tuple(part for graft in whole if (part := graft.within(cached_tokens, end)) is not None)
        if not grafts or end - grafts[0].start < self._min_tokens:
            return None
        for piece in reversed(before.pieces):  # where memory is short, the end goes before the beginning
            self._memory.touch(piece)
        return Continued(end=end, grafts=grafts, slots=before.slots)

    def answered(self, prompt: Prompt, plan: Plan, tokens: torch.Tensor, read: Read) -> None:
        """Keep a prompt and its answer for the next turn, if there may be one.

        Args:
            prompt: the request.
            plan: what became of it.
            tokens: [n] int64, prompt and answer as far as there is KV.
            read: their KV.
        """
        if prompt.trial or not prompt.workflow_id:
            return
        before = self._before(prompt)
        branches = [one for one in self._known.pop(_key(prompt), []) if one is not before]
        conversation = before or _Conversation()
        self._let_go(conversation, min(plan.continued_tokens, _same_tokens(conversation, tokens)))
        if plan.spliced:
            conversation.prompt_tokens, conversation.mark = len(prompt.tokens), _mark(prompt.tokens)
            conversation.slots = plan.slots
            branches.append(conversation)
            if self._may_go_on(prompt):
                self._keep(conversation, prompt, plan, tokens, read)
        for old in branches[:-_BRANCHES]:
            self._let_go(old)
        if branches:
            self._known[_key(prompt)] = branches[-_BRANCHES:]
        if len(self._known) > _REMEMBERED:
            for old in self._known.popitem(last=False)[1]:
                self._let_go(old)

    def distrust(self, slot: SlotKey) -> None:
        """The quality gate has closed a slot: conversations into which its texts were put are computed."""
        for conversation in (one for branches in self._known.values() for one in branches):
            if slot in conversation.slots:
                self._let_go(conversation)

    def clear(self) -> None:
        """Forget everything; whoever clears the memory does so, too."""
        self._known.clear()
        self._in_vain.clear()

    def _before(self, prompt: Prompt) -> _Conversation | None:
        """The turn that a prompt goes on from, or asks again."""
        branches = self._known.get(_key(prompt), [])
        longest_first = sorted(branches, key=lambda one: one.prompt_tokens, reverse=True)
        return next((one for one in longest_first if _begins(prompt.tokens, one)), None)

    def _may_go_on(self, prompt: Prompt) -> bool:
        in_vain = self._in_vain.get(_kind(prompt), _IN_VAIN)
        if in_vain >= _IN_VAIN:
            return False
        self._note(prompt, in_vain=in_vain + 1)
        return True

    def _note(self, prompt: Prompt, *, in_vain: int) -> None:
        self._in_vain[_kind(prompt)] = in_vain
        self._in_vain.move_to_end(_kind(prompt))
        if len(self._in_vain) > _REMEMBERED:
            self._in_vain.popitem(last=False)

    def _keep(self, conversation: _Conversation, prompt: Prompt, plan: Plan, tokens: torch.Tensor, read: Read) -> None:
        kept = len(conversation.pieces)
        start = _end(conversation.pieces[-1]) if kept else plan.exact_tokens
        if start >= len(tokens):
            return
        own_bytes = sum(piece.nbytes for piece in conversation.pieces)
        new_bytes = read(start, start + 1).bytes_of(len(tokens) - start)
        if not self._memory.ever_holds(own_bytes + new_bytes) or not self._memory.fits(new_bytes):
            return  # there is no room for both, and the beginning is worth more
        if len(conversation.pieces) < kept:  # it was used less lately than others
            return
        origin = Origin(workflow_type=prompt.workflow_type, agent=prompt.agent, part="turn")
        # The answer apart: the next prompt may have it without its reasoning.
        borders = [start, *([len(prompt.tokens)] if start < len(prompt.tokens) < len(tokens) else []), len(tokens)]
        for first, last in pairwise(borders):
            piece = Segment(
                tokens=tokens[first:last].clone(),
                kv=self._keeper.kv(first, last, read),
                position=first,
                origin=origin,
                exact=False,
                value_sketch=torch.empty(0, 0),
            )
            if not self._memory.hold(piece, piece.nbytes, partial(self._let_go, conversation, first)):
                return
            conversation.pieces.append(piece)

    def _let_go(self, conversation: _Conversation, up_to: int = 0) -> None:
        """Forget the KV behind a token."""
        while conversation.pieces and _end(conversation.pieces[-1]) > up_to:
            self._memory.release(conversation.pieces.pop())


def _key(prompt: Prompt) -> _Key:
    return (prompt.namespace, prompt.workflow_id, prompt.agent, prompt.method)


def _kind(prompt: Prompt) -> _Kind:
    return (prompt.namespace, prompt.workflow_type, prompt.agent)


def _mark(tokens: torch.Tensor) -> bytes:
    return hashlib.blake2b(tokens.numpy().tobytes(), digest_size=16).digest()


def _begins(tokens: torch.Tensor, turn: _Conversation) -> bool:
    return len(tokens) >= turn.prompt_tokens and _mark(tokens[: turn.prompt_tokens]) == turn.mark


def _end(piece: Segment) -> int:
    return piece.position + len(piece.tokens)


def _as_it_was(piece: Segment) -> Graft:
    return Graft(start=piece.position, end=_end(piece), segment=piece, as_it_was=True)


def _same_tokens(turn: _Conversation, tokens: torch.Tensor) -> int:
    """Where the pieces end that are of these tokens: another answer to the same prompt may have been kept since."""
    end = 0
    for piece in turn.pieces:
        if not torch.equal(piece.tokens, tokens[piece.position : _end(piece)]):
            break
        end = _end(piece)
    return end


def _common_tokens(turn: _Conversation, tokens: torch.Tensor) -> int:
    """Where what is kept of a turn ends that a prompt has, too; answers may have been rendered differently."""
    end = 0
    for piece in turn.pieces:
        end = _end(piece)
        if end > turn.prompt_tokens:
            return common_run(tokens, piece.tokens, piece.position, 0, floor=piece.position, ceiling=len(tokens))[1]
    return end
