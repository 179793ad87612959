"""Train a small Llama from scratch to answer :mod:`tasks`: rotary embedding, grouped queries, one byte a token.

Usage: python bench/quality/train.py FOLDER [--minutes 12] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import torch
from tasks import KINDS, ask, make_puzzle, make_role

from kvflow.patches.cpu import declare_torchvision_ops, tokenizer
from kvflow.patches.cpu.model import ModelSpec, llama_config

SPEC = ModelSpec(hidden_size=128, intermediate_size=256, layers=4, heads=4, kv_heads=2, max_position=8192)
IGNORED = -100


def sample(rng: random.Random, texts: int, statements: int, questions: int) -> tuple[list[int], list[int]]:
    """Write one prompt with questions and answers; tokens, and labels at the answers only."""
    role = make_role(rng)
    puzzle = make_puzzle(rng, texts, statements)
    tokens = list((role + "".join(puzzle.texts)).encode())
    labels = [IGNORED] * len(tokens)
    for _ in range(questions):
        question = ask(rng, role, puzzle, rng.choice(KINDS))
        if question is None:
            continue
        head, answer = question.text.encode(), question.answer.encode()
        tokens += [*head, *answer, ord(";")]
        labels += [*[IGNORED] * len(head), *answer, IGNORED]
    return tokens, labels


def batch(rng: random.Random, size: int, texts: int, statements: int, questions: int) -> tuple[Any, Any]:
    """Draw a batch, padded on the right."""
    rows = [sample(rng, texts, statements, questions) for _ in range(size)]
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = torch.tensor([t + [0] * (longest - len(t)) for t, _ in rows])
    labels = torch.tensor([l + [IGNORED] * (longest - len(l)) for _, l in rows])
    return tokens, labels


def shape(progress: float) -> tuple[int, int, int, int]:
    """Batch size, texts, statements and questions at a point of the training: short prompts first."""
    if progress < 0.3:
        return 64, 1, 4, 8
    if progress < 0.6:
        return 48, 2, 5, 12
    return 24, random.Random(progress).choice((2, 3, 4)), 10, 20


def train(minutes: float, seed: int) -> Any:
    """Train until the time is over; how far it gets depends on the machine."""
    declare_torchvision_ops()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**llama_config(SPEC), "attn_implementation": "sdpa"}))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
    start_s, step = time.monotonic(), 0
    while (progress := (time.monotonic() - start_s) / (60 * minutes)) < 1:
        rate = 2e-3 * min(1, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        tokens, labels = batch(rng, *shape(progress))
        logits = model(input_ids=tokens).logits
        targets = labels[:, 1:]
        asked = targets != IGNORED
        loss = torch.nn.functional.cross_entropy(logits[:, :-1][asked], targets[asked])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0:
            print(f"{progress:6.1%} step {step} loss {loss.item():.3f}", flush=True)
        step += 1
    return model


def accuracy(model: Any, seed: int, texts: int = 3, statements: int = 10, prompts: int = 60) -> dict[str, float]:
    """Share of answers that are right in every token, by kind of question, with the prompt computed at once."""
    rng = random.Random(seed)
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for _ in range(prompts):
        role, puzzle = make_role(rng), make_puzzle(rng, texts, statements)
        for kind in KINDS:
            question = ask(rng, role, puzzle, kind)
            if question is None:
                continue
            head = (role + "".join(puzzle.texts) + question.text).encode()
            tokens = torch.tensor([[*head, *question.answer.encode()]])
            with torch.no_grad():
                drawn = model(input_ids=tokens).logits.argmax(-1)
            right[kind].append(bool((drawn[0, len(head) - 1 : -1] == tokens[0, len(head) :]).all()))
    return {kind: sum(marks) / max(1, len(marks)) for kind, marks in right.items()}


def write(model: Any, folder: Path) -> None:
    """Write weights, configuration and tokenizer as SGLang loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(llama_config(SPEC), indent=1, sort_keys=True))
    tokenizer.write_tokenizer(folder, max_position=SPEC.max_position)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    trained = train(arguments.minutes, arguments.seed)
    print(json.dumps(accuracy(trained, arguments.seed + 1)))
    write(trained, arguments.folder)
