"""Where the tree's keys are pairs of tokens, as with EAGLE, paths are one shorter than prompts, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvflow.engine import KvCommand, PromptClaim
from kvflow.patches.claim import attach
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.engine.model_free import Requests

pytestmark = [pytest.mark.engine, pytest.mark.beside]

PROMPT_TOKENS = 64
FIXED_TOKENS = 32
CLAIM = PromptClaim(workflow_id="w", workflow_type="t", agent="a", fixed_tokens=FIXED_TOKENS)


@pytest.fixture(params=[pytest.param(False, id="tokens"), pytest.param(True, id="pairs")])
def asked(request: pytest.FixtureRequest, publish: Callable[[float], Any]) -> Callable[[int, KvCommand], Any]:
    """Compute a prompt of a live workflow that carries a command on itself, in pages of some tokens."""

    def ask(page_tokens: int, command: KvCommand) -> Any:
        publish(0)
        requests = Requests("kvflow", device_tokens=512, page_tokens=page_tokens, bigrams=request.param)
        requests.cache.coordinator.tick(100.0)
        live = WorkflowUpdate(workflow_id="w", workflow_type="t", claims=(ClaimPrediction(agent="a", steps=1),))
        requests.cache.coordinator.apply(live)
        req = requests.ask("r", range(PROMPT_TOKENS), 2, CLAIM)
        actions = attach({"actions": []}, None, [command], key="k")["actions"]
        req.kv_hints = SimpleNamespace(actions=[SimpleNamespace(**action) for action in actions])
        requests.admit(req)
        requests.compute(req, 7)
        return SimpleNamespace(req=req, cache=requests.cache, pairs=request.param)

    return ask


@pytest.mark.parametrize("page_tokens", [1, 4])
def test_a_prompt_that_has_been_computed_is_pinned_at_once(
    asked: Callable[[int, KvCommand], Any], page_tokens: int
) -> None:
    found = asked(page_tokens, KvCommand(verb="kv.pin", tenant="one", ttl_s=60.0))
    (answer,) = found.req._kvflow_answers.values()
    length = PROMPT_TOKENS - page_tokens if found.pairs else PROMPT_TOKENS
    assert (answer.status, answer.tokens) == ("accepted", length)


@pytest.mark.parametrize("page_tokens", [1, 4])
def test_the_fixed_part_of_a_prompt_ends_where_its_last_whole_page_does(
    asked: Callable[[int, KvCommand], Any], page_tokens: int
) -> None:
    found = asked(page_tokens, KvCommand(verb="kv.pin", tenant="one"))
    length = FIXED_TOKENS - page_tokens if found.pairs else FIXED_TOKENS
    path = found.cache.path_of(found.req)
    assert [end for _, end in path if end <= FIXED_TOKENS] == [length]
    assert [bool(node.owners.fixed) for node, end in path if end <= FIXED_TOKENS] == [True]
    assert found.req._kvflow_fixed_tokens == length
