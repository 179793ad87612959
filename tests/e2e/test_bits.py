"""An answer of the CPU engine is the same to the last bit whatever runs beside it and whatever is cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.reusing import text

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

LENGTHS = (33, 100, 300, 520, 700, 1100)
BODY = {"tokens": 12, "return_logprob": True, "top_logprobs_num": 5}


def test_answers_have_the_same_bits_alone_in_company_and_cached(start: Callable[..., Any]) -> None:
    prompts = [text(f"prompt {length}", length) for length in LENGTHS]
    with start("--max-total-tokens", "8192") as server:
        alone = [server.generate(prompt, **BODY) for prompt in prompts]
        server.flush()
        together = server.generate(prompts, **BODY)
        cached = server.generate(prompts, **BODY)
        pairs = [answer for at in (0, 2, 4) for answer in server.generate(prompts[at : at + 2], **BODY)]
    assert all(one["meta_info"]["cached_tokens"] == 0 for one in alone + together)
    assert any(one["meta_info"]["cached_tokens"] > 1000 for one in cached)
    for answers in (together, cached, pairs):
        assert [logprobs(one) for one in answers] == [logprobs(one) for one in alone]


def logprobs(answer: dict[str, Any]) -> Any:
    """What each token of the answer was chosen from."""
    return answer["meta_info"]["output_top_logprobs"]
