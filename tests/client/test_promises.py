"""How long the library may keep a program waiting, as it is shipped: other tests are more patient."""

from __future__ import annotations

from kvflow.client import outbox, server

_SHIPPED = {"ask": server.ASK_TIMEOUT_S, "exit": outbox.EXIT_FLUSH_S, "linger": outbox.LINGER_S}


def test_a_server_is_asked_and_an_exit_held_up_for_half_a_second_and_facts_wait_for_a_fifth() -> None:
    """See docs/client.md."""
    assert _SHIPPED == {"ask": 0.5, "exit": 0.5, "linger": 0.2}
