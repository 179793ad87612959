"""The tiny model: what is on disk, what its tokenizer does, and how robust its greedy text is."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from kvflow.errors import ConfigError
from kvflow.patches.cpu import declare_torchvision_ops
from kvflow.patches.cpu.model import STAMP, ModelSpec, build_model

pytestmark = [pytest.mark.engine, pytest.mark.beside]

SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "layers": 1, "heads": 2, "kv_heads": 1}
PROMPT = "A cache that knows what comes next keeps what will be used. " * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    declare_torchvision_ops()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(folder))


def read(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_equal_parameters_give_equal_folders_and_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, second = (read(build_model(tmp_path / name, **SMALL)) for name in ("a", "b"))
    other = read(build_model(tmp_path / "c", seed=1, **SMALL))
    assert first == second
    assert first["model.safetensors"] != other["model.safetensors"]
    assert first["tokenizer.json"] == other["tokenizer.json"]


def test_a_second_call_leaves_the_folder_alone_and_other_parameters_rebuild_it(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "model", **SMALL)
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    build_model(folder, **SMALL)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    build_model(folder, seed=5, **SMALL)
    assert json.loads((folder / STAMP).read_text())["seed"] == 5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model"]


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not a kvflow model"):
        build_model(tmp_path, **SMALL)


@pytest.mark.parametrize("wrong", [{"heads": 3}, {"kv_heads": 3}, {"vocab_size": 256}, {"dtype": "int8"}])
def test_an_impossible_geometry_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build_model(tmp_path / "model", **wrong)


def test_bytes_of_kv_per_token_follow_from_the_geometry() -> None:
    assert ModelSpec().kv_bytes_per_token == 2 * 4 * 2 * 64 * 4
    assert ModelSpec(dtype="bfloat16").kv_bytes_per_token == 2 * 4 * 2 * 64 * 2


@pytest.mark.parametrize("text", ["plain", "  spaces \n\t", "Grüße, 日本 🙂", "\x00\x7f", "don't  stop"])
def test_one_byte_is_one_token_and_decoding_gives_the_text_back(tokenizer: Any, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokens == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_a_longer_conversation_starts_with_the_shorter_one(tokenizer: Any) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    call = {"function": {"name": "look", "arguments": {}}}
    messages += [
        {"role": "assistant", "content": "well", "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "42"}]},
    ]
    longer = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert longer.startswith(prompt + "well")
    assert "<|im_start|>tool\n42<|im_end|>" in longer
    assert tokenizer.encode(prompt)[0] == 257


def test_greedy_text_is_printable_varied_follows_the_prompt_and_survives_another_split(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaForCausalLM

        model = LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    prompts = [PROMPT, PROMPT.replace("A cache", "B cache", 1)]
    steps = 96
    with torch.inference_mode():
        batch, past, chosen, gaps = torch.tensor([list(text.encode()) for text in prompts]), None, [], []
        for _ in range(steps):
            output = model(batch, past_key_values=past, use_cache=True)
            past = output.past_key_values
            best = output.logits[:, -1].topk(2)
            gaps.append(best.values[:, 0] - best.values[:, 1])
            batch = best.indices[:, :1]
            chosen.append(batch)
        answers = torch.cat(chosen, dim=1)
        # The same steps in one piece, one row at a time.
        for text, answer in zip(prompts, answers, strict=True):
            whole = torch.cat([torch.tensor(list(text.encode())), answer[:-1]]).unsqueeze(0)
            assert torch.equal(model(whole).logits[0, -steps:].argmax(-1), answer)
    texts = [bytes(answer.tolist()).decode("ascii") for answer in answers]
    assert all(text.isprintable() and len(set(text)) > 25 for text in texts)
    assert texts[0] != texts[1]
    assert torch.cat(gaps).min().item() > 1e-3
