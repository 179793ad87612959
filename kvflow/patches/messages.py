"""Messages between the HTTP process and the schedulers. Payloads hold JSON types only."""

from __future__ import annotations

from typing import Any

import msgspec
from sglang.srt.managers.io_struct import BaseReq, hook_custom_types


class KvflowUpdates(BaseReq, kw_only=True):
    """The time, and predictions for every rank, in order; never answered.

    Attributes:
        now_s: clock of the control plane, so that all ranks have the same.
        costs: what has been measured of them, seconds by name.
        feedback: workflows and their outcomes.
    """

    now_s: float
    costs: dict[str, float] = msgspec.field(default_factory=dict)
    updates: list[dict[str, Any]] = msgspec.field(default_factory=list)
    feedback: list[tuple[str, float]] = msgspec.field(default_factory=list)


class KvflowQuery(BaseReq, kw_only=True):
    """A question to, or a switch for, every scheduler.

    Attributes:
        op: name of the operation, see `scheduler.OPERATIONS`.
        query_id: comes back in the answer, because SGLang's communicator does not match answers to questions.
    """

    op: str
    query_id: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class KvflowAnswer(BaseReq, kw_only=True):
    """Answer of one data-parallel replica."""

    query_id: str
    error: str = ""
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class KvflowCommanded(BaseReq, kw_only=True):
    """What has become of the commands on a request's prompt, from each data-parallel replica that has run it.

    Attributes:
        key: of the request's commands, see `claim.attach`.
        answers: of each command, in order.
    """

    key: str
    answers: list[dict[str, Any]] = msgspec.field(default_factory=list)


def announce() -> None:
    """Make the messages known to SGLang's encoder in this process."""
    hook_custom_types(KvflowUpdates, KvflowQuery, KvflowAnswer, KvflowCommanded)
