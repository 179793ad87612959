"""The guard in the server: which orders have one, and what it says."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Any

import pytest

from kvflow import config
from kvflow.engine import Coordinator, GuardSettings, Tier
from kvflow.engine.guard import MemoryView
from kvflow.errors import ConfigError
from kvflow.patches.orders import require_servable
from kvflow.patches.trust import Trust
from kvflow.policy import ORACLES, POLICIES, LRUPolicy, ServingCosts, make_policy, registry

UNIT = 64
VIEW = MemoryView(100_000, 0, 0)
NOTHING = dict.fromkeys(Tier, 0)


def make(policy: str = "cost", **settings: Any) -> Trust:
    return Trust(config.Guard(**settings), Coordinator(policy), UNIT)


def ask(trust: Trust, name: int) -> None:
    """A request that finds nothing, of 4096 tokens."""
    digests = [name * 100 + index for index in range(64)]
    trust.started(str(name), digests, NOTHING, VIEW)
    trust.ended(str(name), digests, VIEW)


def lose(trust: Trust) -> None:
    """Until it is given up, lose what LRU would have."""
    for name in range(12):
        for _ in range(2):
            if trust.active:
                ask(trust, name)


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - ORACLES))
def test_our_own_order_is_guarded_unless_it_is_switched_off_and_published_ones_are_not(policy: str) -> None:
    assert make(policy).as_dict()["guarded"] is (policy == "cost")
    assert make(policy, enabled=False).as_dict()["guarded"] is False


def test_falling_back_is_a_warning_and_trying_again_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trust = make()
    lose(trust)
    assert (trust.active, trust.share) == (False, 0.0)
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "cost does worse than LRU" in warning.message
    name = 100
    while not trust.active and name < 10_000:
        ask(trust, name)
        name += 1
    assert 0 < trust.share < 1
    assert "cost is tried again, on the oldest" in caplog.text
    assert trust.regret.recoveries == 1


def test_patience_is_set() -> None:
    patient = make(allowance_prompts=100.0)
    lose(patient)
    assert patient.share == 1.0


def test_a_new_order_is_trusted_and_regret_goes_on_counting() -> None:
    coordinator = Coordinator("cost")
    trust = Trust(config.Guard(), coordinator, UNIT)
    lose(trust)
    lost = trust.regret.lost_tokens
    assert lost > 0
    for policy in ("steps", "lru", "cost"):
        coordinator.set_policy(policy)
        trust.restart()
        assert trust.share == 1.0
        assert trust.regret.lost_tokens == lost
    trust.reset_regret()
    lose(trust)
    assert trust.regret.lost_tokens == lost


def test_an_order_changed_behind_its_back_is_noticed() -> None:
    coordinator = Coordinator("cost")
    trust = Trust(config.Guard(), coordinator, UNIT)
    coordinator.set_policy("lru")  # as a failing order is replaced
    ask(trust, 1)
    assert not trust.as_dict()["guarded"]


def test_a_request_counts_as_running_until_it_ends() -> None:
    trust = make()
    trust.started("r", [4, 8], NOTHING, VIEW)
    assert trust.as_dict()["running"] == 1
    trust.ended("r", [], VIEW)
    assert trust.as_dict()["running"] == 0


@pytest.mark.parametrize("policy", sorted(ORACLES))
def test_a_server_refuses_orders_that_need_the_future(policy: str) -> None:
    with pytest.raises(ConfigError, match=r"needs the future: use it in `kvflow simulate`; choose one of lru, "):
        require_servable(policy)
    make_policy(policy)  # the simulator may


def test_unknown_orders_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'newest' does not exist; choose one of lru, lfu, "):
        require_servable("newest")


def offer(monkeypatch: pytest.MonkeyPatch, **offered: str) -> None:
    """Install packages that bring policies."""
    points = [importlib.metadata.EntryPoint(name, value, registry.ENTRY_POINTS) for name, value in offered.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.ENTRY_POINTS else [])


class Theirs(LRUPolicy):
    """Somebody else's order."""

    name = "theirs"
    guarded = True

    def __init__(self, costs: ServingCosts) -> None:
        self.costs = costs


def test_orders_of_other_packages_are_found_by_entry_point_and_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, theirs=f"{Theirs.__module__}:Theirs", lru="does.not:matter")
    require_servable("theirs")
    coordinator = Coordinator("theirs")
    assert coordinator.policy == "theirs"
    assert Trust(config.Guard(), coordinator, UNIT).as_dict()["guarded"]
    assert type(make_policy("lru")) is LRUPolicy  # our own names win


def test_an_order_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, broken="no.such.module:Policy")
    with pytest.raises(ConfigError, match=r"'broken' \(no\.such\.module:Policy\) cannot be loaded: No module"):
        require_servable("broken")
    with pytest.raises(ConfigError, match=r"choose one of .*broken"):
        require_servable("newest")


def test_the_settings_have_the_defaults_of_what_they_set() -> None:
    settings = config.Settings()
    assert ServingCosts(**settings.costs.model_dump(exclude={"learn_loads", "learn_compute"})) == ServingCosts()
    assert GuardSettings(**settings.guard.model_dump(exclude={"enabled"})) == GuardSettings()
    assert settings.eviction.policy == "cost"
