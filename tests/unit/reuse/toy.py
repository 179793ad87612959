"""A model of two layers, small enough to check reuse on it token by token, and what a server does with it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from kvflow.reuse import KV, Graft, HostMemory, Method, Mode, Plan, Prompt, Reuse, Rotary, Slot
from kvflow.reuse.keeping import Read

LAYERS, HEADS, HEAD_DIM, VOCABULARY = 2, 4, 8, 50
DIM = HEADS * HEAD_DIM
CPU = torch.device("cpu")
FREQUENCIES = 100.0 ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
ANGLES = torch.arange(1000, dtype=torch.float64)[:, None] * FREQUENCIES
_generator = torch.Generator().manual_seed(1)
EMBEDDING = torch.randn(VOCABULARY, DIM, generator=_generator, dtype=torch.float64)
QUERY, KEY, VALUE, OUT = torch.randn(4, LAYERS, DIM, DIM, generator=_generator, dtype=torch.float64) / DIM**0.5

Text = list[int]
Part = Text | tuple[str, Text]
"""Of a prompt: what is always computed, or a slot with its name."""


def rotated(heads: torch.Tensor) -> torch.Tensor:
    half = HEAD_DIM // 2
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.exp(1j * ANGLES[: len(heads), None])
    return torch.cat((turned.real, turned.imag), dim=-1)


def prefill(tokens: Sequence[int], grafted: Sequence[tuple[Graft, KV]] = ()) -> KV:
    """Keys and values of a prompt, in float32; those of grafts are taken as they come, in every layer."""
    state = EMBEDDING[torch.tensor(tokens)]
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(LAYERS):
        query, key, value = ((state @ made[layer]).view(-1, HEADS, HEAD_DIM) for made in (QUERY, KEY, VALUE))
        query, key = rotated(query), rotated(key)
        for graft, kv in grafted:
            key[graft.start : graft.end], value[graft.start : graft.end] = kv.keys[layer], kv.values[layer]
        scores = torch.einsum("ihd,jhd->hij", query, key) / HEAD_DIM**0.5
        ahead = torch.ones(len(tokens), len(tokens)).triu(1).bool()
        weights = scores.masked_fill(ahead, -torch.inf).softmax(dim=-1)
        state = state + torch.einsum("hij,jhd->ihd", weights, value).flatten(1) @ OUT[layer]
        kept.append((key.float(), value.float()))
    keys, values = (torch.stack(parts) for parts in zip(*kept, strict=True))
    return KV(keys, values)


def words(seed: int, length: int) -> Text:
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def made(max_bytes: int = 10**9, entropy: float = 0.3, anchors: int = 20) -> Reuse:
    rotary = Rotary(torch.cat((ANGLES.cos(), ANGLES.sin()), dim=1).float(), neox=True)
    return Reuse(rotary, HostMemory(max_bytes), min_tokens=32, entropy=entropy, anchors=anchors)


def prompt(agent: str, *parts: Part, mode: Mode = Mode.ROTATE, namespace: str = "", repair_tokens: int = 0) -> Prompt:
    tokens: Text = []
    slots: list[Slot] = []
    for part in parts:
        text = part[1] if isinstance(part, tuple) else part
        if isinstance(part, tuple):
            slots.append(Slot(start=len(tokens), end=len(tokens) + len(text), name=part[0]))
        tokens += text
    return Prompt(
        namespace=namespace,
        workflow_type="review",
        agent=agent,
        tokens=torch.tensor(tokens),
        slots=tuple(slots),
        method=Method(mode=mode, repair_tokens=repair_tokens),
    )


def reading(kv: KV) -> Read:
    def read(start: int, end: int) -> KV:
        part = kv.span(start, end)
        return KV(part.keys.clone(), part.values.clone())

    return read


def exact(asked: Prompt) -> KV:
    return prefill(asked.tokens.tolist())


def serve(reuse: Reuse, asked: Prompt, cached_tokens: int = 0) -> tuple[Plan, KV]:
    """Do for a prompt what a server does; returns what was planned, and its KV."""
    plan = reuse.plan(asked, cached_tokens)
    if plan.spliced:
        reuse.put(asked, plan)
    kv = prefill(asked.tokens.tolist(), [(graft, reuse.fill(asked, graft, CPU)) for graft in plan.grafts])
    reuse.computed(asked, plan, reading(kv))
    return plan, kv


def spans(plan: Plan) -> list[tuple[int, int]]:
    return [(graft.start, graft.end) for graft in plan.grafts]


def error(got: KV, expected: KV) -> float:
    """How far KV is from other KV, in parts of the largest number in it."""
    pairs = ((got.keys, expected.keys), (got.values, expected.values))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


FLOAT32_ROUNDING = 2e-6
TEXT, OTHER, THIRD = words(1, 64), words(2, 64), words(3, 80)
ROLE, QUESTION = words(10, 21), words(11, 40)


def knowing(*texts: Text) -> Reuse:
    """A planner has handed out texts, in prompts of their own."""
    reuse = made()
    for text in texts:
        serve(reuse, prompt("planner", words(20, 10), ("document", text), mode=Mode.KVCOMM))
    return reuse


def taught(*texts: Text, question: Text = QUESTION) -> Reuse:
    """A critic has seen what a planner has handed it, twice or more often."""
    reuse = knowing(*texts)
    for text in texts:
        plan, _ = serve(reuse, critics(text, question))
        assert plan.grafts == (), "examples are computed"
    return reuse


def critics(text: Text, question: Text = QUESTION, role: Text = ROLE) -> Prompt:
    return prompt("critic", role, ("document", text), question, mode=Mode.KVCOMM)
