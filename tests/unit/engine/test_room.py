"""What has to be left to requests that run while a load holds memory."""

from __future__ import annotations

from kvflow.engine import Room


def test_requests_grow_by_a_token_with_every_step_and_by_a_page_more_than_they_fill() -> None:
    room = Room(free_tokens=100, evictable_tokens=50, running=3, promised_tokens=7, page_tokens=16)
    assert room.growth_tokens(4.5) == 3 * (5 + 16) + 7
    assert room.may_lock(80, 4.5)
    assert not room.may_lock(81, 4.5)


def test_where_tokens_are_guessed_ahead_they_grow_by_more_and_keep_some_ahead() -> None:
    room = Room(free_tokens=100, running=3, step_tokens=4, reserved_tokens=8, page_tokens=16)
    assert room.growth_tokens(4.5) == 3 * (5 * 4 + 8 + 16)
