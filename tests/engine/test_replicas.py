"""Predictions reach every data-parallel replica, and each request one of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.utils import TypeBasedDispatcher

from kvflow.engine import PromptClaim
from kvflow.patches import tree
from kvflow.patches.claim import attach
from kvflow.patches.messages import KvflowQuery, KvflowUpdates
from kvflow.patches.replicas import add_up
from kvflow.patches.scheduler import dispatch
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.engine.test_tree import prompt

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def scheduler(tree: Any, replicas: int) -> SimpleNamespace:
    """As much of SGLang's as takes our messages, one of so many; they have no admission here."""
    made = SimpleNamespace(
        _request_dispatcher=TypeBasedDispatcher([]),
        tree_cache=tree.cache,
        server_args=SimpleNamespace(dp_size=replicas),
        ipc_channels=SimpleNamespace(send_to_tokenizer=SimpleNamespace(send_output=object())),
    )
    dispatch(None, made)
    return made


def request(rid: str, *claims: PromptClaim) -> SimpleNamespace:
    actions = [action for claim in claims for action in attach({"actions": []}, claim)["actions"]]
    hints = SimpleNamespace(actions=[SimpleNamespace(**action) for action in actions])
    req = SimpleNamespace(rid=rid, origin_input_ids=prompt(1), extra_key=None, cache_salt=None, session=None)
    req.kv_hints = hints if claims else None
    return req


@pytest.mark.parametrize("replicas", [1, 2])
def test_of_several_the_one_that_looks_for_a_prompt_has_the_request(
    make_tree: Callable[..., Any], replicas: int
) -> None:
    tree, several = make_tree("kvflow"), replicas > 1
    send = scheduler(tree, replicas)._request_dispatcher
    claims = tree.cache.coordinator.claims
    assert claims.replicated is several
    asks = ClaimPrediction(agent="a", steps=0, since_s=1.0)
    update = WorkflowUpdate(workflow_id="w", workflow_type="t", claims=(asks,))
    send(KvflowUpdates(now_s=10.0, updates=[update.to_wire()]))
    claim = claims.claim_of("w", "a")
    assert claim.waited_for is not several
    assert claim.is_elsewhere(claims.clock) is several
    for req in (request("stranger"), request("r", PromptClaim(workflow_id="w", workflow_type="t", agent="a"))):
        assert claim.asked_here is False
        tree.cache.match_prefix(MatchPrefixParams(key=tree.key(prompt(1)), req=req))
    assert claim.asked_here is several, "of one server nobody needs to know"
    assert claim.waited_for
    assert not claim.is_elsewhere(claims.clock)


def test_a_scheduler_takes_questions_and_says_what_became_of_commands(make_tree: Callable[..., Any]) -> None:
    tree = make_tree("kvflow")
    made = scheduler(tree, replicas=1)
    assert tree.cache.commands.tell is made.ipc_channels.send_to_tokenizer.send_output
    answer = made._request_dispatcher(KvflowQuery(op="stats", query_id="q"))
    assert (answer.query_id, answer.error, answer.data["live_workflows"]) == ("q", "", 0)


def test_what_every_replica_knows_of_is_not_counted_for_each() -> None:
    replicas = [{"live_workflows": 3, "requests": 2, "guard": {"share": 1.0, "mistakes": 1}} for _ in range(2)]
    assert add_up(replicas) == {"live_workflows": 3, "requests": 4, "guard": {"mistakes": 2}}


@pytest.mark.parametrize(("replica", "label"), [(None, 0), (0, 0), (1, 1)])
def test_the_series_of_replicas_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, replica: int | None, label: int
) -> None:
    monkeypatch.setattr(tree, "get_parallel", lambda: SimpleNamespace(dp_rank=replica))
    assert tree._labels({"model_name": "m", "dp_rank": 0}) == {"model_name": "m", "dp_rank": label}
