"""Seams share SGLang's functions with other plugins, whoever comes first."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from kvflow.patches.seams import Feature, Kind, Role, Seam, SeamBook

pytestmark = [pytest.mark.engine, pytest.mark.beside]

MODULE = "somebody_elses_module"


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Call what is hooked, in a process whose registry knows of nothing yet."""
    module: Any = ModuleType(MODULE)
    module.function = lambda: "theirs"
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(HookRegistry, "_hooks", defaultdict(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())

    def call() -> str:
        return module.function()

    return call


def ours(original: Callable[[], str]) -> str:
    return f"ours({original()})"


def another(original: Callable[[], str]) -> str:
    return f"another({original()})"


def instead() -> str:
    return "instead"


def book(target: str = f"{MODULE}.function") -> SeamBook:
    return SeamBook(
        [
            Seam(
                name="a",
                role=Role.HTTP,
                kind=Kind.AROUND,
                feature=Feature.HINTS,
                target=target,
                body=f"{__name__}:ours",
                why="",
            )
        ]
    )


def test_a_plugin_that_is_loaded_later_keeps_its_hook_of_the_same_function(function: Callable[[], str]) -> None:
    made = book()
    made.register()
    assert function() == "theirs", "nothing happens before all plugins are loaded"
    HookRegistry.register(f"{MODULE}.function", another, HookType.AROUND)
    HookRegistry.apply_hooks()
    made.require(strict=True)
    assert function() == "another(ours(theirs))"


def test_a_plugin_that_replaces_a_function_replaces_what_we_hook(function: Callable[[], str]) -> None:
    made = book()
    made.register()
    HookRegistry.register(f"{MODULE}.function", instead, HookType.REPLACE)
    made.require(strict=True)
    assert function() == "ours(instead)"


def test_a_function_that_is_hooked_already_is_hooked_once_more(function: Callable[[], str]) -> None:
    HookRegistry.register(f"{MODULE}.function", another, HookType.AROUND)
    HookRegistry.apply_hooks()
    made = book()
    made.register()
    made.require(strict=True)
    assert function() == "ours(another(theirs))"
    assert made.holds(Feature.HINTS)


def test_a_hook_that_sglang_does_not_apply_is_told_of(
    function: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = book()
    made.register()
    monkeypatch.delitem(sys.modules, MODULE)
    made.settle()
    (state,) = made.states()
    assert not state.holds
    assert "did not apply it" in state.problem
