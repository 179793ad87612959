"""Sessions that grow turn by turn: their paths leave node by node, and most need not be ranked for it."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

import pytest

from kvflow.engine import Coordinator
from kvflow.engine.claim import Claim
from kvflow.sim import SimSettings, load_profile, simulate
from kvflow.sim.node import Node
from kvflow.trace import Program, SynthOptions, programs, synthetic_trace

OPTIONS = SynthOptions(workflows=12, turns=12, fixed_tokens=256, task_tokens=512, output_tokens=128, seed=3)


@cache
def sessions() -> tuple[Program, ...]:
    return tuple(programs(synthetic_trace("react", OPTIONS)[1]))


def played(policy: str, host_tokens: int) -> dict[str, Any]:
    settings = SimSettings(policy=policy, device_tokens=8192, host_tokens=host_tokens, concurrency=6)
    plain = asdict(simulate(sessions(), load_profile("a100"), settings))
    del plain["wall_s"]
    return plain


@pytest.mark.parametrize("host_tokens", [0, 6144, 32_768])
@pytest.mark.parametrize("policy", ["cost", "steps", "ttl", "belady"])
def test_what_follows_its_child_out_is_what_its_rank_would_have_chosen(
    policy: str, host_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = 0
    follows = Coordinator.follows

    def counted(self: Coordinator, parent: Node, child: Node, path: Claim) -> bool:
        nonlocal followed
        found = follows(self, parent, child, path)
        followed += found
        return found

    monkeypatch.setattr(Coordinator, "follows", counted)
    saved = played(policy, host_tokens)
    monkeypatch.setattr(Coordinator, "follows", lambda self, parent, child, path: False)
    assert played(policy, host_tokens) == saved
    assert followed > 20
