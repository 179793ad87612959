"""The way of predictions to the schedulers: with the request they are ahead of, or alone a moment later.

A message of its own wakes an idle scheduler, whose idle pass the request behind it then waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.kv_hints import KvHintAction, KvHintsEnvelope

from kvflow.patches.claim import UPDATES_TYPE
from kvflow.patches.guard import note
from kvflow.patches.messages import KvflowUpdates
from kvflow.predict import WorkflowUpdate

_LINGER_S = 0.01


class Mail:
    """Keeps what is posted for a moment, in order, and lets nothing overtake it.

    Args:
        tokenizer_manager: SGLang's, which owns the socket to the schedulers.
        clock: of the control plane.
    """

    def __init__(self, tokenizer_manager: Any, clock: Callable[[], float]) -> None:
        self._tokenizer_manager = tokenizer_manager
        self._clock = clock
        # With data parallelism a request reaches one replica, and predictions have to reach them all. One with images
        # waits for an encoder elsewhere, if there is one, and later messages overtake it.
        args = tokenizer_manager.server_args
        self._rides = args.dp_size == 1 and not getattr(args, "language_only", False)
        self._updates: list[dict[str, Any]] = []
        self._feedback: list[tuple[str, float]] = []
        self._costs: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def post(
        self,
        updates: Sequence[WorkflowUpdate] = (),
        *,
        costs: Mapping[str, float] | None = None,
        feedback: Sequence[tuple[str, float]] = (),
    ) -> None:
        """Send the time, and what else is given, to every rank of every replica, ahead of later requests."""
        self._updates += [update.to_wire() for update in updates]
        self._feedback += feedback
        self._costs |= costs or {}
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self._send)

    def go_with(self, message: Any) -> KvflowUpdates | None:
        """Put what is waiting into a request that is about to be sent; send it first if that cannot be.

        Returns:
            What the request takes along, which is lost if it cannot be sent.
        """
        if self._timer is None or isinstance(message, KvflowUpdates):
            return None
        if not self._rides or not isinstance(message, TokenizedGenerateReqInput) or message.kv_hints is None:
            self._send()
            return None
        updates = self._collect()
        message.kv_hints = _loaded(message.kv_hints, updates)
        return updates

    def send(self, updates: KvflowUpdates) -> None:
        """Send updates in a message of their own."""
        try:
            self._tokenizer_manager._dispatch_to_scheduler(updates)
        except Exception:
            note("sending predictions")

    def _send(self) -> None:
        self.send(self._collect())

    def _collect(self) -> KvflowUpdates:
        """What is waiting, which then waits no more."""
        if self._timer is not None:
            self._timer.cancel()
        message = KvflowUpdates(now_s=self._clock(), costs=self._costs, updates=self._updates, feedback=self._feedback)
        self._timer, self._updates, self._feedback, self._costs = None, [], [], {}
        return message


def dispatch(original: Callable[..., Any], self: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
    """Let nothing overtake what is waiting (hook around ``TokenizerManager._dispatch_to_scheduler``).

    A request that cannot be sent is its client's affair: what it was to take along is others' as well, and goes alone.
    """
    front, updates = getattr(self, "_kvflow_front", None), None
    if front is not None:
        try:
            updates = front.mail.go_with(obj)
        except Exception:
            note("sending predictions")
    try:
        return original(self, obj, *args, **kwargs)
    except Exception:
        if front is not None and updates is not None:
            front.mail.send(updates)
        raise


def unpack(self: Any, recv_reqs: list[Any], *args: Any, **kwargs: Any) -> None:
    """Put what came with requests ahead of them (hook before ``Scheduler.process_input_requests``)."""
    try:
        recv_reqs[:] = [each for message in recv_reqs for each in _unloaded(message)]
    except Exception:
        note("taking predictions")


def _loaded(envelope: KvHintsEnvelope, updates: KvflowUpdates) -> KvHintsEnvelope:
    payload = {name: getattr(updates, name) for name in ("now_s", "costs", "updates", "feedback")}
    action = KvHintAction(action_id=UPDATES_TYPE, action_type=UPDATES_TYPE, action_version="1", payload=payload)
    return replace(envelope, actions=[*envelope.actions, action])


def _unloaded(message: Any) -> list[Any]:
    """A message, behind what came with it."""
    if not isinstance(message, TokenizedGenerateReqInput) or message.kv_hints is None:
        return [message]
    *others, last = message.kv_hints.actions or [None]
    if last is None or last.action_type != UPDATES_TYPE:
        return [message]
    message.kv_hints = replace(message.kv_hints, actions=others)
    return [KvflowUpdates(**last.payload), message]
