"""What came of a workflow: who is told, and when nothing is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

import kvflow
from kvflow.hints import FeedbackFact, decode_envelope

if TYPE_CHECKING:
    from tests.client.conftest import Peer


def feedback(peer: Peer) -> list[FeedbackFact]:
    """Everything the server was told of outcomes."""
    assert kvflow.flush()
    facts = [fact for body in peer.received if body.body for fact in _facts(body.body)]
    return [fact for fact in facts if isinstance(fact, FeedbackFact)]


def _facts(body: dict[str, Any]) -> list[Any]:
    hints = body.get("kv_hints", body)
    return [item.fact for item in decode_envelope(hints).facts] if "actions" in hints else []


@pytest.fixture
def told(peer: Peer) -> Peer:
    kvflow.configure(url=peer.url)
    return peer


def test_in_a_workflow_it_is_of_that_workflow(told: Peer) -> None:
    with kvflow.workflow("fix") as run, kvflow.step("coder"):
        kvflow.feedback(True)
    assert feedback(told) == [FeedbackFact(workflow_id=run.id, outcome=1.0)]


def test_it_is_posted_and_does_not_share_the_fate_of_a_request(peer: Peer) -> None:
    with httpx.Client(base_url=peer.url) as plain, kvflow.workflow("fix") as run, kvflow.step("coder"):
        client = kvflow.instrument(plain)
        client.post("/v1/completions", json={"prompt": "known"})
        kvflow.feedback(True)
        client.post("/v1/completions", json={"prompt": "x"})
    assert feedback(peer) == [FeedbackFact(workflow_id=run.id, outcome=1.0)]
    asked = [body.body for body in peer.received if body.body and "prompt" in body.body]
    assert len(asked) == 2
    assert not any(isinstance(fact, FeedbackFact) for body in asked for fact in _facts(body))


def test_a_workflow_that_is_over_can_be_named(told: Peer) -> None:
    with kvflow.workflow("fix") as run:
        pass
    kvflow.feedback(0.25, run)
    kvflow.feedback(0, "by-id")
    assert [(fact.workflow_id, fact.outcome) for fact in feedback(told)] == [(run.id, 0.25), ("by-id", 0.0)]


def test_outside_a_workflow_nothing_is_said(told: Peer) -> None:
    kvflow.feedback(1)
    assert feedback(told) == []


def test_an_id_too_long_for_the_wire_names_the_same_workflow(told: Peer) -> None:
    with kvflow.workflow("fix", id="i" * 300) as run:
        pass
    kvflow.feedback(1, "i" * 300)
    assert [fact.workflow_id for fact in feedback(told)] == [run.id]


def test_outside_a_workflow_a_wrong_outcome_is_an_error_too() -> None:
    with pytest.raises(ValueError, match=r"^feedback\(\): outcome: Input should be less than or equal to 1$"):
        kvflow.feedback(2)


@pytest.mark.parametrize("outcome", [-0.1, 1.1, float("nan")])
def test_an_outcome_is_a_share(outcome: float) -> None:
    with kvflow.workflow("fix"), pytest.raises(ValueError, match="outcome"):
        kvflow.feedback(outcome)
