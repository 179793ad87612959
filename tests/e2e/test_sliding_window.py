"""Models of which some layers have a sliding window, and a pool of their own (gpt-oss, Llama 4, Gemma 4 and others)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import HOST_TIER
from tests.e2e.test_eviction import text

pytestmark = [pytest.mark.server, pytest.mark.slow]

FLAGS = ("--load-format", "dummy", "--random-seed", "1", "--max-total-tokens", "4096", "--swa-full-tokens-ratio", "0.2")
WINDOW_TOKENS = 64


@pytest.fixture(scope="session")
def sliding_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Mellum, the one such architecture that SGLang runs without a GPU: its experts are left out."""
    folder = tmp_path_factory.mktemp("sliding")
    for path in model.iterdir():
        if path.name.startswith(("tokenizer", "generation")):
            shutil.copy(path, folder)
    config = {
        "architectures": ["MellumForCausalLM"],
        "model_type": "mellum",
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": WINDOW_TOKENS,
        "mlp_layer_types": ["dense"] * 4,
        "mlp_only_layers": [0, 1, 2, 3],
        "num_hidden_layers": 4,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "vocab_size": 320,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("tier", [(), HOST_TIER])
def test_contexts_are_kept_by_claims_while_windows_are_evicted(
    start: Callable[..., Any], sliding_model: Path, tier: tuple[str, ...]
) -> None:
    with start("--enable-kvflow", *FLAGS, *tier, folder=sliding_model) as server:
        fixed = text("fixed", 400)
        answers = [server.step("w", "a", fixed + text("first", 100))["text"]]
        for number in range(20):  # of each the window is kept: that pool overflows first
            server.generate(text(f"short stranger {number}", 150))
        short_tokens = server.get("stats")["total"]["evicted_tokens"]["device/unclaimed"]
        assert 0 < short_tokens < 20 * 150 - 2048, "there is room for all in the other"
        for number in range(12):
            server.generate(text(f"stranger {number}", 400))
        again = server.step("w", "a", fixed + text("first", 100))
        answers.append(again["text"])
        assert answers[0] == answers[1]
        assert again["meta_info"]["cached_tokens"] >= 400, "its claim has kept it"
        stats = server.get("stats")["total"]
        assert stats["evicted_tokens"]["device/unclaimed"] > short_tokens
        assert server.get("status")["degraded"] == {}
        assert stats["prefetches"] == stats["background_loads"] == 0
        server.end("w")
        server.flush()


def test_what_cannot_be_gone_on_from_for_want_of_a_window_is_not_held_against_predictions(
    start: Callable[..., Any], sliding_model: Path
) -> None:
    with start("--enable-kvflow", *FLAGS, folder=sliding_model) as server:
        for number in range(4):
            head = text(f"head {number}", 400)
            for tail in ("one", "two"):  # of the first prompt SWA keeps the window at its end alone
                found = server.generate(head + text(tail, 100))
                assert found["meta_info"]["cached_tokens"] < WINDOW_TOKENS
        (replica,) = server.get("status")["replicas"]
        assert (replica["guard"]["active"], replica["guard"]["lost_tokens"]) == (True, 0)
        server.flush()
