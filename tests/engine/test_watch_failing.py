"""Following requests goes wrong: what is counted goes on, and predictions that nobody bounds have no say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvflow import config
from kvflow.engine import Coordinator, Tier
from kvflow.patches.trust import Trust
from kvflow.patches.watch import Watch

pytestmark = [pytest.mark.engine, pytest.mark.beside]


@pytest.fixture
def watch() -> Watch:
    """Of a cache whose guard fails whenever a request is looked up, or leaves."""

    def fails(*arguments: Any) -> None:
        raise ArithmeticError

    trust = Trust(config.Guard(), Coordinator("cost"), 64)
    trust.looked_up = trust.ended = fails  # type: ignore[method-assign, assignment]
    made = Watch(
        cast(
            "Any",
            SimpleNamespace(
                trust=trust,
                tree_core=SimpleNamespace(unit_tokens=64),
                publishable=lambda req, tokens: tokens,
                publish=lambda: None,
            ),
        ),
        0,
    )
    made.memory = lambda: None  # type: ignore[method-assign, assignment, return-value]
    return made


def request(*units: int) -> Any:
    return SimpleNamespace(
        rid="r", origin_input_ids=[0] * 64 * len(units), _kvflow_digests=list(units), _kvflow_in_use=list(units)
    )


def test_what_requests_use_is_forgotten_with_them_whatever_the_guard_does(watch: Watch) -> None:
    for _ in range(20):
        watch._in_use.update([1, 2])
        assert watch.left(request(1, 2), False) == ()
    assert not watch._in_use


def test_once_it_is_not_followed_what_predictions_cost_they_have_no_say(watch: Watch) -> None:
    trust = watch._cache.trust
    for number in range(8):
        assert not trust.choice(Tier.DEVICE).none, number
        assert trust.active
        watch.looked_up(request(1))
    assert trust.choice(Tier.DEVICE).none
    assert trust.choice(Tier.HOST).none
    assert not trust.active
    assert trust.as_dict()["guarded"]
