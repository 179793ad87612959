"""Which cache a scheduler is given where kvflow can do nothing for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvflow.patches import switch, tree
from kvflow.patches.seams import Role


@pytest.mark.parametrize(
    "context",
    [
        pytest.param({"disable_radix_cache": True}, id="SGLang has switched the radix cache off"),
        pytest.param({"is_hybrid_swa": True, "full_tokens_per_layer": 0}, id="all layers have a sliding window"),
    ],
)
def test_where_there_is_no_tree_the_cache_is_sglangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, context: dict[str, Any]
) -> None:
    book = SimpleNamespace(require=lambda strict: None, holds=lambda feature: True)
    monkeypatch.setitem(switch.books, Role.SCHEDULER, book)
    monkeypatch.setattr(tree, "default_radix_cache_factory", lambda context: ("SGLang's", context))
    fields = {"disable_radix_cache": False, "is_hybrid_swa": False, "full_tokens_per_layer": None, **context}
    found = tree.build(given := SimpleNamespace(**fields))
    assert found == ("SGLang's", given)
    assert "nothing is managed" in caplog.text


@pytest.mark.parametrize(
    ("plain", "host", "told"), [(False, object(), True), (False, None, False), (True, object(), False)]
)
def test_where_windows_and_states_keep_it_from_loading_ahead_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plain: bool, host: Any, told: bool
) -> None:
    book = SimpleNamespace(require=lambda strict: None, holds=lambda feature: True)
    monkeypatch.setitem(switch.books, Role.SCHEDULER, book)
    made = SimpleNamespace(plain=plain, cache_controller=host, coordinator=SimpleNamespace(policy="cost"))
    monkeypatch.setattr(tree, "create_unified_radix_cache", lambda context, cache_class: made)
    params = SimpleNamespace(eviction_policy="lru")
    context = SimpleNamespace(
        disable_radix_cache=False, is_hybrid_swa=not plain, full_tokens_per_layer=1, params=params
    )
    with caplog.at_level("INFO"):
        assert tree.build(context) is made
    assert ("nothing is loaded or copied ahead" in caplog.text) is told
