"""What requests that wait look for again and again costs next to nothing once it has been looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kvflow.engine import Guard
from kvflow.engine import guard as module
from kvflow.engine.shadow import ShadowLRU
from tests.unit.engine.test_guard import COSTS, UNIT, chain, memory


class Prompt(Sequence[int]):
    """Digests that count how many of them are looked at."""

    def __init__(self, name: int, units: int) -> None:
        self._digests = [7 * digest for digest in chain(name, units)]
        self.looked_at = 0

    def __len__(self) -> int:
        return len(self._digests)

    def __getitem__(self, place: Any) -> Any:
        self.looked_at += 1
        return self._digests[place]

    def __iter__(self) -> Iterator[int]:
        self.looked_at += len(self)
        return iter(self._digests)


@pytest.mark.parametrize("known", [0, 1, 300, 800])
def test_how_much_of_a_prompt_is_there_is_found_without_a_look_at_all_of_it(known: int) -> None:
    shadow, prompt = ShadowLRU(), Prompt(1, 800)
    shadow.hold(list(prompt)[:known], 10_000, group=128)
    prompt.looked_at = 0
    assert shadow.prefix(prompt) == known
    assert prompt.looked_at < 16


@pytest.mark.parametrize("sample", [1, 3])
def test_a_prompt_is_sampled_once_while_its_request_waits(monkeypatch: pytest.MonkeyPatch, sample: int) -> None:
    monkeypatch.setattr(module, "_SHADOW_UNITS", 3_000 // sample)
    guard, view, waits = Guard(COSTS, UNIT), memory(3_000), Prompt(900, 800)
    for name in range(20):
        guard.looked_up("waits", waits)
        guard.started(name, chain(name), device_hit=0, host_hit=0, memory=view)
    assert waits.looked_at < 2 * 800


def test_no_more_prompts_are_remembered_than_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHADOW_UNITS", 1_000)
    guard, view = Guard(COSTS, UNIT), memory(3_000)
    for name in range(3_000):
        guard.looked_up(name, chain(name))
        guard.started(-1, chain(5_000), device_hit=0, host_hit=0, memory=view)
        guard.ended(-1, (), memory=view)
    assert 0 < len(guard._samples) <= module._MAX_WAITING
