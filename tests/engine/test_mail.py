"""How predictions reach the schedulers: with the request behind them, through SGLang's own encoding."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import (
    BatchTokenizedGenerateReqInput,
    TokenizedGenerateReqInput,
    msgpack_decode,
    msgpack_encode,
)
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope
from sglang.srt.sampling.sampling_params import SamplingParams

from kvflow.hints import envelope
from kvflow.patches import claim, mail, messages
from kvflow.patches.messages import KvflowQuery, KvflowUpdates
from kvflow.predict import WorkflowUpdate

messages.announce()


class Wire:
    """A tokenizer manager reduced to its socket, which keeps what a scheduler would read from it.

    Args:
        args: of the server.
    """

    def __init__(self, **args: Any) -> None:
        self.server_args = SimpleNamespace(**{"dp_size": 1, **args})
        self.sent: list[Any] = []
        self._now_s = 0.0
        self.mail = mail.Mail(self, self._clock)
        self._kvflow_front = SimpleNamespace(mail=self.mail)

    def _clock(self) -> float:
        self._now_s += 1.0
        return self._now_s

    def _dispatch_to_scheduler(self, obj: Any) -> None:
        mail.dispatch(Wire._encode, self, obj)

    def _encode(self, obj: Any) -> None:
        self.sent.append(msgpack_decode(msgpack_encode(obj)))

    def post(self, *workflows: str, **more: Any) -> None:
        self.mail.post([WorkflowUpdate(workflow_id=each, workflow_type="t") for each in workflows], **more)

    @property
    def received(self) -> list[str]:
        """What a scheduler handles, in order: requests as they are, predictions as the workflows they are of."""
        messages = list(self.sent)
        mail.unpack(None, messages)
        return [_name(each) for each in messages]


def _name(message: Any) -> str:
    if isinstance(message, KvflowUpdates):
        return "+".join(WorkflowUpdate.from_wire(each).workflow_id for each in message.updates)
    if isinstance(message, BatchTokenizedGenerateReqInput):
        return "batch"
    return message.op if isinstance(message, KvflowQuery) else message.rid


def _request(rid: str, *, hinted: bool = True, params: Any = None) -> TokenizedGenerateReqInput:
    hints = claim.attach(envelope([]), None) if hinted else None
    return TokenizedGenerateReqInput(
        rid=rid,
        input_text="",
        input_ids=array("q", [1, 2, 3]),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=SamplingParams(custom_params=params),
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
        kv_hints=None if hints is None else decode_kv_hints_envelope(hints),
    )


def _run(scene: Callable[[Wire], Any], **args: Any) -> Wire:
    async def play() -> Wire:
        wire = Wire(**args)
        await scene(wire)
        return wire

    return asyncio.run(play())


async def _wait() -> None:
    await asyncio.sleep(0.1)


def test_predictions_come_with_the_request_they_are_ahead_of() -> None:
    async def scene(wire: Wire) -> None:
        wire.post("a", feedback=[("a", 1.0)])
        wire.post("b", costs={"load_token_s": 0.5})
        wire._dispatch_to_scheduler(_request("r"))
        await _wait()

    wire = _run(scene)
    assert len(wire.sent) == 1
    mail.unpack(None, wire.sent)
    updates, request = wire.sent
    assert [tuple(each) for each in updates.feedback] == [("a", 1.0)]
    assert (updates.now_s, updates.costs) == (1.0, {"load_token_s": 0.5})
    assert [WorkflowUpdate.from_wire(each).workflow_id for each in updates.updates] == ["a", "b"]
    assert (request.rid, request.kv_hints.actions) == ("r", []), "a request keeps nothing of what came with it"


def test_what_no_request_follows_is_sent_alone_a_moment_later() -> None:
    async def scene(wire: Wire) -> None:
        wire.post("a")
        assert wire.sent == []
        await _wait()
        wire.post("b")
        await _wait()

    assert _run(scene).received == ["a", "b"]


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(lambda: _request("silent", hinted=False), id="a request without hints"),
        pytest.param(lambda: BatchTokenizedGenerateReqInput(batch=[_request("x"), _request("y")]), id="a batch"),
        pytest.param(lambda: KvflowQuery(op="stats", query_id="q"), id="a question"),
    ],
)
def test_nothing_overtakes_what_is_waiting(behind: Callable[[], Any]) -> None:
    async def scene(wire: Wire) -> None:
        wire.post()
        wire.post("a")
        wire._dispatch_to_scheduler(behind())
        wire.post("b")
        wire._dispatch_to_scheduler(_request("r"))
        await _wait()

    wire = _run(scene)
    assert wire.received == ["a", _name(behind()), "b", "r"]


@pytest.mark.parametrize("args", [{"dp_size": 2}, {"language_only": True}])
def test_predictions_do_not_ride_on_what_reaches_one_replica_or_waits_for_an_encoder(args: dict[str, Any]) -> None:
    async def scene(wire: Wire) -> None:
        wire.post("a")
        wire._dispatch_to_scheduler(_request("r"))

    wire = _run(scene, **args)
    assert [type(each) for each in wire.sent] == [KvflowUpdates, TokenizedGenerateReqInput]


def test_predictions_outlive_a_request_that_cannot_be_sent() -> None:
    nested: dict[str, Any] = {}
    for _ in range(100_000):
        nested = {"deeper": nested}

    async def scene(wire: Wire) -> None:
        wire.post("a", feedback=[("a", 1.0)])
        with pytest.raises(RecursionError):
            wire._dispatch_to_scheduler(_request("too deep", params=nested))
        wire.post("b")
        wire._dispatch_to_scheduler(_request("r"))
        await _wait()

    wire = _run(scene)
    assert wire.received == ["a", "b", "r"]
    assert [tuple(each) for each in wire.sent[0].feedback] == [("a", 1.0)]


def test_samples_of_one_request_share_its_hints_but_bring_predictions_once() -> None:
    async def scene(wire: Wire) -> None:
        first, second = _request("1"), _request("2")
        second.kv_hints = first.kv_hints
        wire.post("a")
        wire._dispatch_to_scheduler(first)
        wire._dispatch_to_scheduler(second)

    assert _run(scene).received == ["a", "1", "2"]


def test_a_client_cannot_send_predictions() -> None:
    action = {"action_id": "x", "action_type": claim.UPDATES_TYPE, "action_version": "1", "payload": {"now_s": 1e9}}
    assert claim.attach(envelope([action]), None)["actions"] == []


def test_what_cannot_be_read_does_not_keep_requests_away() -> None:
    request = _request("r")
    hints: Sequence[dict[str, Any]] = [
        {"action_id": "x", "action_type": claim.UPDATES_TYPE, "action_version": "1", "payload": {"unknown": 1}}
    ]
    request.kv_hints = decode_kv_hints_envelope({**envelope([]), "actions": hints})
    messages = [request]
    mail.unpack(None, messages)
    assert messages == [request]
