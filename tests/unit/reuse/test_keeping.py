"""Long texts are read, corrected and put in a portion at a time, and nothing else changes by that."""

from __future__ import annotations

import pytest
import torch

from kvflow.reuse import KV, Mode, Plan, Prompt, Reuse
from kvflow.reuse.anchors import Anchor
from kvflow.reuse.segments import Segment
from tests.unit.reuse.toy import CPU, OTHER, QUESTION, TEXT, critics, exact, made, prompt, words

PORTION = 24


@pytest.fixture(params=[PORTION, 64, 10_000], ids=["several", "one", "less than one"])
def portion(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tokens a portion has; texts have 64."""
    monkeypatch.setattr("kvflow.reuse.kv.PORTION_TOKENS", request.param)
    return request.param


def learned(reuse: Reuse, *prompts: Prompt) -> int:
    """Have prompts computed; returns the most tokens that were read at once."""
    most = 0
    for asked in prompts:
        kv = exact(asked)

        def read(start: int, end: int, kv: KV = kv) -> KV:
            nonlocal most
            most = max(most, end - start)
            part = kv.span(start, end)
            return KV(part.keys.clone(), part.values.clone())

        reuse.computed(asked, reuse.plan(asked, 0), read)
    return most


def prompts() -> list[Prompt]:
    """A planner hands two texts to a critic, who sees them elsewhere."""
    handed = [prompt("planner", words(20, 10), ("document", text), mode=Mode.KVCOMM) for text in (TEXT, OTHER)]
    return [*handed, critics(TEXT), critics(OTHER)]


def held(reuse: Reuse) -> tuple[list[Segment], list[Anchor]]:
    segments = [reuse.segments.find("", torch.tensor(text), 0, 64, 32)[0].segment for text in (TEXT, OTHER)]
    return segments, [anchor for pool in reuse.pools.values() for anchor in pool.anchors]


def test_what_is_remembered_does_not_depend_on_portions(portion: int) -> None:
    reuse = made()
    most = learned(reuse, *prompts())
    assert most == min(portion, 64)
    segments, anchors = held(reuse)
    for one, asked in zip(segments, prompts(), strict=False):
        kv = exact(asked).span(10, 74)
        assert torch.equal(one.kv.keys, kv.keys)
        assert torch.equal(one.kv.values, kv.values)
    for one, anchor in zip(segments, anchors, strict=True):
        asked = critics(one.tokens.tolist())
        seen = exact(asked)
        assert torch.equal(anchor.offset.values, seen.values[:, 21:85] - one.kv.values)
        assert anchor.following is not None
        assert torch.equal(anchor.following.values, seen.values[:, 85:])
        assert len(anchor.value_sketch) == len(anchor.offset) == 64


def test_what_is_put_in_does_not_depend_on_portions(portion: int) -> None:
    reuse = made()
    learned(reuse, *prompts())
    asked = critics(TEXT)
    for graft in reuse.plan(asked, 0).grafts:
        parts = [*graft.portions()]
        assert max(part.end - part.start for part in parts) <= portion
        filled = [reuse.fill(asked, part, CPU) for part in parts]
        whole = reuse.fill(asked, graft, CPU)
        assert torch.equal(torch.cat([part.keys for part in filled], dim=1), whole.keys)
        assert torch.equal(torch.cat([part.values for part in filled], dim=1), whole.values)


def test_an_answer_is_read_in_portions_too(portion: int) -> None:
    reuse, asked = made(), prompt("planner", QUESTION)
    tokens = torch.tensor([*asked.tokens.tolist(), *TEXT])
    kv = exact(prompt("planner", tokens.tolist()))
    reads: list[int] = []

    def read(start: int, end: int) -> KV:
        reads.append(end - start)
        return kv.span(start, end)

    reuse.answered(asked, Plan(exact_tokens=len(asked.tokens), reason=""), tokens, read)
    assert sum(reads) == len(TEXT) + 1, "and one token to see how large they are"
    assert max(reads) == min(portion, 64)
    (match,) = reuse.segments.find("", tokens, 0, len(tokens), 32)
    assert torch.equal(match.segment.kv.keys, kv.keys[:, len(QUESTION) :])
