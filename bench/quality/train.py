"""Train a small Llama from scratch to answer :mod:`tasks`: rotary embedding, grouped queries.

Usage: python bench/quality/train.py FOLDER [--minutes 12] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tasks import KINDS, ask, make_puzzle, make_role

from kvflow.patches.cpu import declare_torchvision_ops, tokenizer
from kvflow.patches.cpu.model import ModelSpec, llama_config

SPEC = ModelSpec(hidden_size=128, intermediate_size=256, layers=4, heads=4, kv_heads=2, max_position=8192)
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the prompts of one part of the training are like."""

    until: float
    prompts: int
    texts: tuple[int, ...]
    statements: int
    questions: int
    filler: int
    kinds: tuple[str, ...]


LESSONS = (
    Lesson(0.25, 32, (1,), 8, 24, 4, ("lookup", "recite")),
    Lesson(0.5, 32, (1, 2), 8, 24, 8, ("lookup", "recite", "role", "chain")),
    Lesson(0.7, 24, (1, 2), 10, 32, 16, (*KINDS, "sum")),
    Lesson(1.0, 16, (2, 3, 4), 12, 40, 32, KINDS),
)
"""Short prompts and simple questions first."""


def sample(rng: random.Random, lesson: Lesson, texts: int) -> tuple[list[int], list[int]]:
    """Write one prompt with questions and answers; tokens, and labels at the answers only."""
    role = make_role(rng, lesson.filler)
    puzzle = make_puzzle(rng, texts, lesson.statements)
    tokens = [*role, *(token for text in puzzle.texts for token in text)]
    labels = [IGNORED] * len(tokens)
    for _ in range(lesson.questions):
        question = ask(rng, role, puzzle, rng.choice(lesson.kinds))
        if question is not None:
            tokens += [*question.asked, *question.answer]
            labels += [*[IGNORED] * len(question.asked), *question.answer]
    return tokens, labels


def batch(rng: random.Random, lesson: Lesson) -> tuple[Any, Any]:
    """Draw a batch, padded on the right."""
    texts = rng.choice(lesson.texts)
    rows = [sample(rng, lesson, texts) for _ in range(lesson.prompts)]
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row, _ in rows])
    labels = torch.tensor([row + [IGNORED] * (longest - len(row)) for _, row in rows])
    return tokens, labels


def train(minutes: float, seed: int) -> Any:
    """Train until the time is over; how far it gets depends on the machine."""
    declare_torchvision_ops()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**llama_config(SPEC), "attn_implementation": "sdpa"}))
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers" not in name]
    optimisers = (
        torch.optim.Muon(matrices, lr=2e-2, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01),
    )
    rates = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
    start_s, step = time.monotonic(), 0
    while (progress := (time.monotonic() - start_s) / (60 * minutes)) < 1:
        for optimiser, rate in zip(optimisers, rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * min(1, (step + 1) / 50) * min(1, 2.5 * (1 - progress) + 0.02)
        lesson = next(lesson for lesson in LESSONS if progress < lesson.until)
        tokens, labels = batch(rng, lesson)
        logits = model(input_ids=tokens).logits
        targets = labels[:, 1:]
        asked = targets != IGNORED
        loss = torch.nn.functional.cross_entropy(logits[:, :-1][asked], targets[asked])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        if step % 100 == 0:
            print(
                f"{progress:6.1%} step {step} loss {loss.item():.3f}",
                accuracy(model, 1, lesson.texts[-1], lesson.statements, 20),
                flush=True,
            )
        step += 1
    return model


def accuracy(model: Any, seed: int, texts: int = 3, statements: int = 12, prompts: int = 60) -> dict[str, float]:
    """Share of answers that are right in every token, by kind of question, with the prompt computed at once."""
    rng = random.Random(seed)
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for _ in range(prompts):
        role, puzzle = make_role(rng), make_puzzle(rng, texts, statements)
        for kind in KINDS:
            question = ask(rng, role, puzzle, kind)
            if question is None:
                continue
            head = [*role, *(token for text in puzzle.texts for token in text), *question.asked]
            tokens = torch.tensor([[*head, *question.answer]])
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
