"""What passes between the processes of a server: messages as SGLang can encode them, and what its health goes by."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import Server

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

PATIENCE_S = 5
"""Of a health check: long enough for two of the questions that schedulers are asked all the time."""


@pytest.fixture(scope="module")
def replicas(start: Callable[..., Any]) -> Iterator[Server]:
    """Two replicas, to which SGLang passes on what it has encoded without pickle."""
    env = {"SGLANG_USE_PICKLE_IPC": "0", "SGLANG_HEALTH_CHECK_TIMEOUT": str(PATIENCE_S)}
    with start("--enable-kvflow", "--max-total-tokens", "2048", env=env, data_parallel=2) as server:
        yield server


def test_without_pickle_predictions_and_questions_pass_the_data_parallel_controller(replicas: Server) -> None:
    for number in range(4):
        assert replicas.step(f"w{number}", "a", "hello " * 40)["output_ids"]
    stats = replicas.get("stats")
    assert [replica["live_workflows"] for replica in stats["replicas"]] == [4, 4]
    assert stats["total"]["requests"] == 4


def test_a_server_whose_answers_do_not_come_out_is_not_healthy(replicas: Server) -> None:
    replicas.step("w", "a", "hello")  # while there is a workflow, schedulers are asked how long requests wait
    replicas.client.get("/health_generate").raise_for_status()
    (detokenizer,) = (each for each in psutil.Process(replicas.pid).children() if "detokenizer" in each.name())
    detokenizer.send_signal(signal.SIGSTOP)
    try:
        assert replicas.client.get("/health_generate").status_code == 503
    finally:
        detokenizer.send_signal(signal.SIGCONT)
    deadline_s = time.monotonic() + 20
    while replicas.client.get("/health_generate").status_code != 200:
        assert time.monotonic() < deadline_s
