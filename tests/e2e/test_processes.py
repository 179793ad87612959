"""What passes between the processes of a server: our messages as SGLang can encode them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Server

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]


@pytest.fixture(scope="module")
def replicas(start: Callable[..., Any]) -> Iterator[Server]:
    """Two replicas, to which SGLang passes on what it has encoded without pickle."""
    env = {"SGLANG_USE_PICKLE_IPC": "0"}
    with start("--enable-kvflow", "--max-total-tokens", "2048", env=env, data_parallel=2) as server:
        yield server


def test_without_pickle_predictions_and_questions_pass_the_data_parallel_controller(replicas: Server) -> None:
    for number in range(4):
        assert replicas.step(f"w{number}", "a", "hello " * 40)["output_ids"]
    stats = replicas.get("stats")
    assert [replica["live_workflows"] for replica in stats["replicas"]] == [4, 4]
    assert stats["total"]["requests"] == 4
