"""What programs hold at a time: what a size in percent is a share of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from kvflow.sim.context import Context, Pager
from kvflow.trace import MAIN_THREAD, Join, LLMCall, Piece, Program, Spawn

_PAGES = 1 << 32
"""Per digest, so that none is made."""


def live_tokens(programs: Sequence[Program], at_once: int | None = None) -> float:
    """What programs hold that they will use again, each when that is most.

    What is fixed for a role counts once for all programs, and once for a program what its agents' contexts begin with.

    Args:
        programs: all of them.
        at_once: how many run at a time.
    """
    fixed: dict[tuple[str, str], int] = {}
    for program in programs:
        for call in program.calls:
            role = (program.start.type, call.agent)
            fixed[role] = max(fixed.get(role, 0), call.fixed_tokens or 0)
    own_tokens = fmean(_most_tokens(program, _contexts(program)) for program in programs) if programs else 0.0
    return sum(fixed.values()) + own_tokens * min(at_once or len(programs), len(programs))


def longest_request(programs: Sequence[Program]) -> int:
    """Tokens of the longest prompt with its answer."""
    return max((call.prompt.tokens + call.output_tokens for program in programs for call in program.calls), default=0)


def _contexts(program: Program) -> dict[str, Context]:
    """Every call's prompt with its answer."""
    pager = Pager(1, _PAGES)
    calls = {call.call: call for call in program.calls}
    made: dict[str, Context] = {}
    for call in program.calls:
        before = [call]  # what it continues, in whichever thread that is
        while (base := before[-1].prompt.base) is not None and base not in made:
            before.append(calls[base])
        for each in reversed(before):
            prompt = each.prompt
            context = made[prompt.base] if prompt.base is not None else pager.empty()
            answer = [Piece(each.output, each.output_tokens)] if each.output_tokens else []
            made[each.call] = pager.extend(context, prompt.keep_tokens, [*prompt.add, *answer])
    return made


def _most_tokens(program: Program, contexts: Mapping[str, Context], thread: str = MAIN_THREAD) -> int:
    """Contexts behind fixed prompts, from an agent's first call to its last, when they are longest together.

    Of a thread and those it has spawned, until they have been joined.
    """
    events = program.threads.get(thread, [])
    last = {event.agent: number for number, event in enumerate(events) if isinstance(event, LLMCall)}
    live: dict[str, LLMCall] = {}
    beside: dict[str, int] = {}
    own_tokens = most_tokens = 0
    for number, event in enumerate(events):
        if isinstance(event, Spawn):
            beside[event.child] = _most_tokens(program, contexts, event.child)
        elif isinstance(event, Join):
            beside.pop(event.child, None)
        elif isinstance(event, LLMCall):
            live[event.agent] = event
            own_tokens = _together(live.values(), contexts)
        most_tokens = max(most_tokens, own_tokens + sum(beside.values()))
        if isinstance(event, LLMCall) and last[event.agent] == number:
            del live[event.agent]
            own_tokens = _together(live.values(), contexts)
    return most_tokens


def _together(calls: Iterable[LLMCall], contexts: Mapping[str, Context]) -> int:
    """Contexts behind fixed prompts, what several begin with once: sorted, neighbours have most in common."""
    ordered = sorted(calls, key=lambda call: [(p.content, p.offset, p.tokens) for p in contexts[call.call].pieces])
    own_tokens = sum(contexts[call.call].tokens - (call.fixed_tokens or 0) for call in ordered)
    for one, other in pairwise(ordered):
        common_tokens = _common_tokens(contexts[one.call].pieces, contexts[other.call].pieces)
        own_tokens -= max(0, common_tokens - max(one.fixed_tokens or 0, other.fixed_tokens or 0))
    return own_tokens


def _common_tokens(one: Sequence[Piece], other: Sequence[Piece]) -> int:
    """How many tokens two contexts begin with alike."""
    tokens = 0
    for mine, its in zip(one, other, strict=False):
        if (mine.content, mine.offset) != (its.content, its.offset):
            break
        tokens += min(mine.tokens, its.tokens)
        if mine.tokens != its.tokens:
            break
    return tokens
