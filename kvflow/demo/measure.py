"""Measuring from the client's side, so that every arm is measured by the same code."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

import kvflow
from kvflow.engine import digests
from kvflow.engine.accounting import GhostPages
from kvflow.errors import ServerUnavailableError

REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One LLM call, as its client saw it.

    Attributes:
        start_s: seconds since the round began.
        device_tokens: prompt tokens found on the device.
        host_tokens: prompt tokens loaded back from the host tier.
        recomputed_tokens: prompt tokens computed although they had been cached before in this round.
        new_tokens: prompt tokens computed for the first time.
        output: ids of the generated tokens.
        prompt: ids of the prompt's tokens.
    """

    round: int
    workflow: str
    agent: str
    start_s: float
    latency_s: float
    prompt_tokens: int
    device_tokens: int
    host_tokens: int
    recomputed_tokens: int
    new_tokens: int
    output: tuple[int, ...]
    prompt: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain form for the result file, without the tokens themselves."""
        data = asdict(self)
        del data["prompt"]
        data["output_tokens"] = len(data.pop("output"))
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in data.items()}


@dataclass(slots=True)
class RoundRecord:
    """All calls of one round of one arm; rounds start with an empty cache.

    Args:
        page_tokens: page size in tokens, for telling recomputed tokens from new ones.
    """

    index: int
    page_tokens: int
    began_s: float = field(default_factory=time.perf_counter)
    steps: list[StepRecord] = field(default_factory=list)
    workflows: list[dict[str, Any]] = field(default_factory=list)
    _ghost: GhostPages = field(init=False)

    def __post_init__(self) -> None:
        self._ghost = GhostPages(self.page_tokens, 1_000_000)

    def now_s(self) -> float:
        """Seconds since the round began."""
        return time.perf_counter() - self.began_s

    def add(self, workflow: str, agent: str, start_s: float, body: dict[str, Any]) -> None:
        """Enter one finished chat completion, asked for with token ids and cache details."""
        latency_s = self.now_s() - start_s
        choice = body["choices"][0]
        prompt = choice["prompt_token_ids"]
        cached = (body.get("sglext") or {}).get("cached_tokens_details") or {}
        device, host = int(cached.get("device") or 0), int(cached.get("host") or 0)
        chain = digests(prompt, "", self.page_tokens)
        recomputed = self._ghost.known(chain, device + host)
        self._ghost.remember(chain)
        self.steps.append(
            StepRecord(
                round=self.index,
                workflow=workflow,
                agent=agent,
                start_s=start_s,
                latency_s=latency_s,
                prompt_tokens=len(prompt),
                device_tokens=device,
                host_tokens=host,
                recomputed_tokens=recomputed,
                new_tokens=len(prompt) - device - host - recomputed,
                output=tuple(choice["response_token_ids"]),
                prompt=tuple(prompt),
            )
        )


class MeasuredModel:
    """The program's model: an SGLang server, with every call recorded.

    Args:
        client: HTTP client, instrumented or not.
        record: where calls are entered.
        workflow: name of the workflow in the record; the same in every arm.
        output_tokens: length of every answer.
    """

    def __init__(self, client: httpx.AsyncClient, record: RoundRecord, workflow: str, output_tokens: int) -> None:
        self._client = client
        self._record = record
        self._workflow = workflow
        self._output_tokens = output_tokens

    async def ask(self, system: str, user: str) -> str:
        """Answer a prompt, at temperature 0 and of fixed length."""
        context = kvflow.current()
        agent = context.agent if context is not None else "main"
        start_s = self._record.now_s()
        response = await self._client.post(
            "/v1/chat/completions",
            json={
                "model": "default",
                "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
                "temperature": 0,
                "max_tokens": self._output_tokens,
                "ignore_eos": True,
                "return_cached_tokens_details": True,
                "return_prompt_token_ids": True,
                "return_token_ids": True,
            },
        )
        if response.status_code != httpx.codes.OK:
            raise ServerUnavailableError(f"the server answered {response.status_code}: {response.text[:300]}")
        body = response.json()
        self._record.add(self._workflow, agent, start_s, body)
        return body["choices"][0]["message"]["content"]
