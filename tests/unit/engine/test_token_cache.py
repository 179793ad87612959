"""Tokens of texts in the HTTP process: each is made once, and they take no more memory than they may."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

from kvflow.patches.token_cache import TokenCache

LONG = 8_000
"""Tokens of a long text."""


class Characters:
    """A tokenizer whose tokens are characters, which counts what it is asked."""

    def __init__(self, first: int = 0) -> None:
        self.asked: list[str] = []
        self._first = first

    def encode(self, text: str) -> list[int]:
        self.asked.append(text)
        return [self._first + ord(character) for character in text]


def ask(cache: TokenCache, tokenizer: Characters, text: str) -> list[int]:
    return list(cache.tokens(tokenizer, text, lambda: tokenizer.encode(text)))


def test_a_text_that_comes_again_is_not_tokenised_again() -> None:
    cache, tokenizer = TokenCache(2**20), Characters()
    for text in ("one", "two", "one", "\ud800", "\ud800", "two", ""):
        assert ask(cache, tokenizer, text) == list(map(ord, text))
    assert tokenizer.asked == ["one", "two", "\ud800", ""]


def test_tokenizers_do_not_share_tokens() -> None:
    cache = TokenCache(2**20)
    assert ask(cache, Characters(), "a") != ask(cache, Characters(100), "a")


def test_texts_that_are_always_new_take_no_more_than_they_may() -> None:
    cache, tokenizer = TokenCache(2**20), Characters(100_000)
    tracemalloc.start()
    before_bytes, _ = tracemalloc.get_traced_memory()
    for number in range(60):
        ask(cache, tokenizer, f"{number} " + "x" * LONG)
        tokenizer.asked.clear()
    held_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    tracemalloc.stop()
    assert 2**19 < cache.held_bytes <= 2**20
    assert held_bytes < 1.1 * 2**20
    ask(cache, tokenizer, f"{number} " + "x" * LONG)
    assert tokenizer.asked == [], "the latest are kept"


def test_very_short_texts_are_bounded_too() -> None:
    cache, tokenizer = TokenCache(2**20), Characters()
    tracemalloc.start()
    for number in range(5_000):
        ask(cache, tokenizer, str(number))
        tokenizer.asked.clear()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 1.1 * 2**20


def test_what_is_used_stays_and_what_is_larger_than_all_room_does_not() -> None:
    cache, tokenizer = TokenCache(20_000), Characters()
    for number in range(100):
        ask(cache, tokenizer, "often")
        ask(cache, tokenizer, f"{number} " + "x" * 1_000)
    assert tokenizer.asked.count("often") == 1
    assert ask(cache, tokenizer, "y" * 10_000) == [ord("y")] * 10_000
    assert cache.held_bytes <= 20_000


def test_threads_may_ask_at_once() -> None:
    cache, tokenizer = TokenCache(10_000), Characters()
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda number: ask(cache, tokenizer, str(number % 40)), range(4_000))
        assert all(answer == list(map(ord, str(number % 40))) for number, answer in enumerate(answers))
    assert 0 < cache.held_bytes <= 10_000
