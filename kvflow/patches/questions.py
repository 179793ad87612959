"""Questions of the HTTP process to the schedulers, and their answers."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from sglang.utils import TypeBasedDispatcher

from kvflow.errors import ServerUnavailableError
from kvflow.patches.messages import KvflowAnswer, KvflowQuery

_ANSWER_TIMEOUT_S = 10.0


class _Question:
    """Answers gathered so far, one expected of every replica."""

    def __init__(self, replicas: int) -> None:
        self.done: asyncio.Future[list[KvflowAnswer]] = asyncio.get_running_loop().create_future()
        self._answers: list[KvflowAnswer] = []
        self._replicas = replicas

    def add(self, answer: KvflowAnswer) -> None:
        """Take one more answer."""
        self._answers.append(answer)
        if len(self._answers) == self._replicas and not self.done.done():
            self.done.set_result(self._answers)


class Questions:
    """Those that are open.

    Args:
        tokenizer_manager: SGLang's, which owns the socket to the schedulers.
    """

    def __init__(self, tokenizer_manager: Any) -> None:
        self._tokenizer_manager = tokenizer_manager
        self._open: dict[str, _Question] = {}
        self._replicas = tokenizer_manager.server_args.dp_size
        tokenizer_manager._result_dispatcher += TypeBasedDispatcher([(KvflowAnswer, self.receive)])

    async def ask(self, op: str, **arguments: Any) -> list[KvflowAnswer]:
        """Put a question to every data-parallel replica.

        Raises:
            ServerUnavailableError: not every scheduler answered in time.
        """
        self._tokenizer_manager.auto_create_handle_loop()
        query = KvflowQuery(op=op, query_id=uuid4().hex, arguments=arguments)
        waiting = self._open[query.query_id] = _Question(self._replicas)
        try:
            self._tokenizer_manager._dispatch_to_scheduler(query)
            return await asyncio.wait_for(waiting.done, _ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise ServerUnavailableError(
                f"the schedulers did not answer {op!r} within {_ANSWER_TIMEOUT_S:g} s"
            ) from None
        finally:
            del self._open[query.query_id]

    def receive(self, answer: KvflowAnswer) -> None:
        """Take the answer of one replica; late ones to abandoned questions are dropped."""
        question = self._open.get(answer.query_id)
        if question is not None:
            question.add(answer)
