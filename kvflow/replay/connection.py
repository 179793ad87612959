"""One server, as a replay's clients use it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from kvflow.client.outbox import LINGER_S
from kvflow.hints import envelope
from kvflow.hints.models import MAX_ACTIONS
from kvflow.replay.arms import Arm
from kvflow.replay.forcing import forced
from kvflow.replay.record import CallRecord
from kvflow.sim.stream import pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server answered.

    Attributes:
        tokens: ids.
        cached: tokens of the prompt found in the cache, by tier.
    """

    tokens: array[int]
    cached: dict[str, int]


class Connection:
    """Asks a server the way an arm's programs do.

    Args:
        client: whose base address is the server's.
        free: let the model answer what it likes, as long as the recorded answer; else it is made to give that answer.
        began_s: when the round began, by :func:`time.perf_counter`.
        timeout_s: a call that takes longer has failed.

    Attributes:
        lost: why the server could not be reached, the first time that it could not; empty if it always could.
        refused: why it did not take what it was told, the same way.
    """

    def __init__(
        self, client: httpx.AsyncClient, arm: Arm, *, free: bool, began_s: float, timeout_s: float = 600.0
    ) -> None:
        self.arm = arm
        self.lost = self.refused = ""
        self._client = client
        self.free = free
        self._began_s = began_s
        self._timeout_s = timeout_s
        self._sending = False
        self._facts: list[tuple[str, dict[str, Any]]] = []
        self._told = asyncio.Event()

    def now_s(self) -> float:
        """Seconds since the round began."""
        return time.perf_counter() - self._began_s

    def say(self, workflow_id: str, action: dict[str, Any]) -> None:
        """Tell a fact, if the arm's programs do: with the workflow's next request, or by itself if there is none soon.

        As with kvflow's client nobody waits until it has arrived.
        """
        if self.arm.hints:
            self._facts.append((workflow_id, action))
            self._told.set()

    @contextlib.asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Send facts in the background, in order, those that have gathered at once; at the end all are sent."""
        sender = asyncio.create_task(self._send())
        try:
            yield
            while self._facts or self._sending:
                await asyncio.sleep(LINGER_S)
        finally:
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sender

    async def over(self, workflow_id: str) -> None:
        """Close what SGLang calls a session, if the arm's programs have any."""
        if not self.arm.sessions:
            return
        try:
            await self._client.post("/close_session", json={"session_id": workflow_id})
        except httpx.HTTPError as error:
            self._failed(error)

    async def ask(
        self,
        prompt: Sequence[int],
        answer: array[int],
        hints: list[dict[str, Any]],
        seen: CallRecord,
        computed: Callable[[], None] = lambda: None,
    ) -> Answer | None:
        """Ask for an answer, and enter in a record what was seen of it.

        Args:
            prompt: token ids.
            answer: the recorded one.
            hints: what to tell with it, if the arm's programs tell anything.
            seen: the record, of a call of its workflow; says why if nothing is returned.
            computed: called when the first token comes.
        """
        body: dict[str, Any] = {"input_ids": list(prompt), "stream": True}
        sampling: dict[str, Any] = {"max_new_tokens": max(1, len(answer)), "temperature": 0, "ignore_eos": True}
        if answer and not self.free:
            extra = forced(answer)
            sampling |= extra.pop("sampling_params")
            body |= extra
        body["sampling_params"] = sampling
        if self.arm.hints:
            body["kv_hints"] = envelope([*self._riders(seen.workflow, MAX_ACTIONS - len(hints)), *hints])
        if self.arm.sessions:
            body["session_id"] = seen.workflow
        seen.prompt_tokens = len(prompt)
        last: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                last = await self._stream(body, seen, computed)
        except TimeoutError:
            seen.error = f"not answered in {self._timeout_s:g} s"
        except (httpx.HTTPError, ValueError) as error:
            seen.error = self._failed(error)
        seen.ended_s = self.now_s()
        return self._answer(last, answer, seen) if last is not None else None

    async def _send(self) -> None:
        while True:
            await self._told.wait()
            if len(self._facts) < MAX_ACTIONS:
                await asyncio.sleep(LINGER_S)
            batch = [action for _, action in self._facts[:MAX_ACTIONS]]
            del self._facts[:MAX_ACTIONS]
            if not self._facts:
                self._told.clear()
            if batch:
                self._sending = True
                with contextlib.suppress(httpx.HTTPError):  # what is lost is lost, as with kvflow's client
                    response = await self._client.post("/kvflow/v1/events", json=envelope(batch))
                    if response.is_error:
                        self.refused = self.refused or f"status {response.status_code}: {response.text[:200]}"
                self._sending = False

    def _failed(self, error: Exception) -> str:
        """Say why; a server that was slow has not been lost."""
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, httpx.TransportError) and not isinstance(error, httpx.TimeoutException):
            self.lost = self.lost or told
        return told

    def _riders(self, workflow_id: str, most: int) -> list[dict[str, Any]]:
        """Take a workflow's facts that have not been sent, for its request to bring them along."""
        own = [fact for fact in self._facts if fact[0] == workflow_id][:most]
        taken = {id(action) for _, action in own}
        self._facts = [fact for fact in self._facts if id(fact[1]) not in taken]
        return [action for _, action in own]

    async def _stream(
        self, body: dict[str, Any], seen: CallRecord, computed: Callable[[], None]
    ) -> dict[str, Any] | None:
        last: dict[str, Any] | None = None
        last_s, tokens = 0.0, []
        async with self._client.stream("POST", "/generate", json=body) as response:
            if response.status_code != httpx.codes.OK:
                seen.error = f"status {response.status_code}: {(await response.aread())[:200].decode(errors='replace')}"
                return None
            async for piece in pieces(response):
                last, now_s = piece, self.now_s()
                tokens = _so_far(tokens, piece)
                if _aborted(piece) is not None:
                    continue
                if seen.first_s is None:
                    seen.first_s = now_s
                    computed()
                else:
                    seen.longest_pause_s = max(seen.longest_pause_s, now_s - last_s)
                last_s = now_s
        if last is None or "meta_info" not in last:
            seen.error = "no answer" if last is None else str(last.get("error", last))[:200]
            return None
        return last | {"output_ids": tokens}

    def _answer(self, last: dict[str, Any], recorded: array[int], seen: CallRecord) -> Answer:
        meta, tokens = last["meta_info"], array("q", last["output_ids"])
        details = meta.get("cached_tokens_details") or {}
        seen.queue_s = meta.get("queue_time")
        seen.output_tokens = len(tokens)
        seen.host_tokens, seen.storage_tokens = int(details.get("host") or 0), int(details.get("storage") or 0)
        seen.device_tokens = int(meta.get("cached_tokens") or 0) - seen.host_tokens - seen.storage_tokens
        if (why := _aborted(last)) is not None:
            seen.error = why[:200]
        elif recorded and not self.free and tokens != recorded:
            seen.error = "another answer than the recorded one"
        cached = {"device": seen.device_tokens, "host": seen.host_tokens, "storage": seen.storage_tokens}
        return Answer(tokens=tokens, cached=cached)


def _so_far(tokens: list[int], piece: dict[str, Any]) -> list[int]:
    """All of an answer up to a piece, which brings only what is new with SGLang's --incremental-streaming-output."""
    brought: list[int] = piece.get("output_ids") or []
    whole = (piece.get("meta_info") or {}).get("completion_tokens", len(brought))
    return brought if len(brought) >= whole else [*tokens, *brought]


def _aborted(piece: dict[str, Any]) -> str | None:
    """Why a server gave a request up; None if it did not. It then says nothing of what was cached."""
    reason = (piece.get("meta_info") or {}).get("finish_reason") or {}
    return str(reason.get("message") or "aborted") if reason.get("type") == "abort" else None
