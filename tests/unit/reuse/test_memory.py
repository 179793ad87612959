"""The host memory that reuse may hold."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.reuse import KV, HostMemory


def test_the_least_recently_used_go_first_and_are_told() -> None:
    gone: list[str] = []
    memory = HostMemory(100)
    for key in "abcd":
        assert memory.hold(key, 25, partial(gone.append, key))
    assert memory.hold("e", 40, partial(gone.append, "e"))
    assert gone == ["a", "b"]
    assert (len(memory), memory.used_bytes, memory.dropped) == (3, 90, 2)


def test_what_is_used_stays() -> None:
    gone: list[str] = []
    memory = HostMemory(100)
    for key in "abcd":
        memory.hold(key, 25, partial(gone.append, key))
    memory.touch("a")
    memory.touch("nobody")
    memory.hold("e", 50, partial(gone.append, "e"))
    assert gone == ["b", "c"]


@pytest.mark.parametrize(("nbytes", "fits"), [(100, True), (101, False), (0, True)])
def test_what_is_larger_than_the_bound_is_not_held_and_nothing_goes_for_it(nbytes: int, fits: bool) -> None:
    gone: list[str] = []
    memory = HostMemory(100)
    memory.hold("a", 1, partial(gone.append, "a"))
    assert memory.hold("large", nbytes, partial(gone.append, "large")) is fits
    assert gone == (["a"] if nbytes == 100 else [])
    assert memory.used_bytes == (nbytes if gone else 1)


def test_what_is_released_gives_its_room_back_and_is_not_told() -> None:
    gone: list[str] = []
    memory = HostMemory(100)
    memory.hold("a", 60, partial(gone.append, "a"))
    memory.release("a")
    memory.release("a")
    memory.release("nobody")
    assert (len(memory), memory.used_bytes) == (0, 0)
    assert memory.hold("b", 100, partial(gone.append, "b"))
    assert not gone
    assert memory.dropped == 0


def test_what_has_to_go_may_let_go_of_others_as_well() -> None:
    memory = HostMemory(100)
    memory.hold("a", 40, lambda: memory.release("b"))
    memory.hold("b", 40, lambda: None)
    assert memory.hold("c", 50, lambda: None)
    assert (len(memory), memory.used_bytes) == (1, 50)


def test_a_cleared_memory_is_as_new() -> None:
    gone: list[str] = []
    memory = HostMemory(100)
    memory.hold("a", 60, partial(gone.append, "a"))
    memory.clear()
    assert (len(memory), memory.used_bytes) == (0, 0)
    assert memory.hold("a", 100, partial(gone.append, "a again"))
    assert memory.hold("b", 1, partial(gone.append, "b"))
    assert gone == ["a again"]


@pytest.mark.parametrize(("pinned", "expected"), [(False, 3 * 40 + 3 * 24), (True, 128 + 128)])
def test_pinned_memory_is_taken_in_blocks_of_powers_of_two(
    monkeypatch: pytest.MonkeyPatch, pinned: bool, expected: int
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda part: pinned)
    assert KV(torch.zeros(1, 3, 1, 10), torch.zeros(1, 3, 1, 6)).nbytes == expected
    assert KV(torch.zeros(1, 4, 1, 8), torch.zeros(1, 0, 1, 8)).nbytes == 128


calls = st.lists(st.tuples(st.sampled_from(["hold", "touch", "release"]), st.integers(0, 7), st.integers(0, 60)))


@settings(max_examples=60, deadline=None)
@given(calls)
def test_it_holds_what_a_list_in_order_of_use_would(script: list[tuple[str, int, int]]) -> None:
    memory, alive = HostMemory(100), set[int]()
    listed: list[tuple[int, int]] = []
    for what, key, nbytes in script:
        entry = next((entry for entry in listed if entry[0] == key), None)
        if what == "hold" and entry is None and nbytes <= 100:
            while sum(size for _, size in listed) + nbytes > 100:
                listed.pop(0)
            listed.append((key, nbytes))
            assert memory.hold(key, nbytes, partial(alive.discard, key))
            alive.add(key)
        elif what == "touch":
            memory.touch(key)
            listed += [listed.pop(listed.index(entry))] if entry else []
        elif what == "release":
            memory.release(key)
            alive.discard(key)
            listed = [other for other in listed if other is not entry]
        assert alive == {key for key, _ in listed}
        assert len(memory) == len(listed)
        assert memory.used_bytes == sum(size for _, size in listed) <= memory.max_bytes
