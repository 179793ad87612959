"""The shadow LRU on random prompts that share beginnings."""

from __future__ import annotations

from collections import Counter, OrderedDict
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from kvflow.engine.shadow import ShadowLRU

PROMPTS = st.text(alphabet="ab", min_size=1, max_size=8)
REQUESTS = st.lists(st.tuples(PROMPTS, st.text(alphabet="ab", max_size=4), st.integers(0, 3)), max_size=40)
"""Prompt, answer, and how many requests later it ends."""


def chain(text: str) -> list[int]:
    return [crc32(text[: end + 1].encode()) for end in range(len(text))]


class Textbook:
    """LRU one by one: an ordered dictionary, and counts of those in use."""

    def __init__(self) -> None:
        self.kept: OrderedDict[int, None] = OrderedDict()
        self.held: Counter[int] = Counter()

    def hold(self, prompt: list[int], capacity: int) -> None:
        for digest in prompt:
            self.kept.pop(digest, None)
            self.held[digest] += 1
        self._shrink(capacity)

    def release(self, prompt: list[int], added: list[int], capacity: int) -> None:
        for digest in reversed(prompt):
            self.held[digest] -= 1
        for digest in reversed([*prompt, *added]):
            if self.held[digest] <= 0:
                self.kept[digest] = None
                self.kept.move_to_end(digest)
        self._shrink(capacity)

    def _shrink(self, capacity: int) -> None:
        self.held = +self.held
        while self.kept and len(self.kept) + len(self.held) > capacity:
            self.kept.popitem(last=False)


@given(REQUESTS, st.integers(0, 30))
def test_added_one_by_one_it_is_textbook_lru(requests: list[tuple[str, str, int]], capacity: int) -> None:
    shadow, textbook = ShadowLRU(), Textbook()
    running: list[tuple[str, str, int]] = []
    for order, (prompt, answer, lasts) in enumerate(requests):
        shadow.hold(chain(prompt), capacity, group=1)
        textbook.hold(chain(prompt), capacity)
        running.append((prompt, answer[:1], order + lasts))
        for request in [request for request in running if request[2] <= order]:
            running.remove(request)
            whole = chain(request[0] + request[1])
            held, added = whole[: len(request[0])], whole[len(request[0]) :]
            shadow.release(held, added, capacity)
            textbook.release(held, added, capacity)
        has = {digest for text, more, _ in requests for digest in chain(text + more) if digest in shadow}
        assert has == {*textbook.kept, *textbook.held}
        assert len(shadow) == len(has)
        assert {digest for digest in has if shadow.holds(digest)} == {*textbook.held}


@given(REQUESTS, st.integers(0, 30), st.integers(1, 6), st.sampled_from([0.0, 0.25, 0.75]))
def test_it_has_beginnings_of_prompts_and_no_more_than_there_is_room_for(
    requests: list[tuple[str, str, int]], capacity: int, group: int, rest: float
) -> None:
    shadow = ShadowLRU()
    for prompt, answer, _ in requests:
        whole = chain(prompt + answer)
        held, added = whole[: len(prompt)], whole[len(prompt) :]
        shadow.hold(held, capacity, group, rest)
        assert shadow.prefix(held) == len(held)
        shadow.release(held, added, capacity, rest, rest)
        assert len(shadow) <= capacity
        for text, more, _ in requests:
            present = [digest in shadow for digest in chain(text + more)]
            assert present == sorted(present, reverse=True)
            assert shadow.prefix(chain(text + more)) == sum(present)
    shadow.clear()
    assert len(shadow) == 0
