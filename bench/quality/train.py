"""Train a small Llama from scratch to answer :mod:`tasks`: rotary embedding, grouped queries; larger on a GPU.

Usage: python bench/quality/train.py FOLDER [--steps 2600] [--seed 0] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tasks import (
    DIGITS,
    END,
    KINDS,
    NAMES,
    PASSAGE_KINDS,
    PUZZLE_KINDS,
    Library,
    Puzzle,
    Tokens,
    make_puzzle,
    make_role,
)

from kvflow.patches.cpu import declare_torchvision_ops, tokenizer
from kvflow.patches.cpu.model import ModelSpec, llama_config

SMALL = ModelSpec(hidden_size=128, intermediate_size=256, layers=5, heads=4, kv_heads=2, max_position=8192)
LARGE = ModelSpec(hidden_size=512, intermediate_size=1024, layers=8, heads=8, kv_heads=4, max_position=8192)
BATCH_TOKENS = 4000
RATE = 2e-3
IGNORED = -100
BIND, BOUND_AT = "bind", -3
"""What a statement of a text sets its name to, and which hidden states have to say so: those that the last two layers
read, so that questions find it there. Without that, whether chains are learned depends on the processor."""
PROSE_FROM, PROSE_EVERY = 3, 8
"""Lesson from which on one step in so many is on prose."""
ENOUGH, LEAST_STEPS = 0.85, 20
"""Share of answers that have to be right before the next lesson begins, and how long a lesson takes at least."""
LEAST_PRACTICE = 0.1
"""Weight of a kind of question that is always answered right; of one that never is, it is more by one."""

Row = list[tuple[int, int, str]]
"""Token, what is to be learned there (or :data:`IGNORED`), and the kind of question."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the prompts of one part of the training are like."""

    texts: tuple[int, ...]
    statements: int
    filler: int
    kinds: tuple[str, ...]
    most_steps: int = 400


LESSONS = (
    Lesson((), 0, 0, ("copy",)),
    Lesson((1,), 6, 0, ("lookup", "recite")),
    Lesson((1, 2), 6, 8, ("lookup", "recite", "role", "chain")),
    Lesson((1, 2), 6, 8, PUZZLE_KINDS, most_steps=900),
    Lesson((1, 2, 3, 4), 12, 32, PUZZLE_KINDS),
)
"""Random tokens and the same again teach to look up what followed a token; without that start, nothing is learned."""


def puzzle_row(rng: random.Random, lesson: Lesson, texts: int, right: Mapping[str, float]) -> Row:
    """Write one prompt with questions and answers, the more of a kind the fewer of it are answered right by now."""
    if not texts:
        tokens = [rng.choice(NAMES + DIGITS) for _ in range(rng.randint(8, 24))]
        return _given([*tokens, tokens[0]]) + _wanted(tokens[1:], "copy")
    role, puzzle = make_role(rng, lesson.filler), make_puzzle(rng, texts, lesson.statements)
    row = _given(role) + [entry for text in range(texts) for entry in _bound(puzzle, text, role)]
    weights = [LEAST_PRACTICE + 1 - right[kind] for kind in lesson.kinds]
    for kind in rng.choices(lesson.kinds, weights, k=4 + lesson.statements * texts):
        question = puzzle.ask(rng, role, kind)
        if question is not None:
            row += _given(question.asked) + _wanted(question.answer, question.kind)
    return row


def _bound(puzzle: Puzzle, text: int, role: Tokens) -> Row:
    """Write one text, in which the value of every statement is to be known where it is set."""
    values = iter([DIGITS[puzzle.value(s.name, role)] for s in puzzle.statements if s.text == text])
    return [(token, next(values), BIND) if token == END else (token, IGNORED, "") for token in puzzle.texts[text]]


def prose_row(rng: random.Random, lesson: Lesson, library: Library) -> Row:
    """Write one prompt with a passage."""
    passage = library.passage(rng)
    return _given(make_role(rng, lesson.filler)) + _wanted([*passage.text, *passage.following], "prose")


def _given(tokens: Sequence[int]) -> Row:
    return [(token, IGNORED, "") for token in tokens]


def _wanted(tokens: Sequence[int], kind: str) -> Row:
    return [(token, token, kind) for token in tokens]


def train(spec: ModelSpec, steps: int, seed: int, device: str) -> Any:
    """Train; lessons change as they are learned, and the rate falls over the last part."""
    declare_torchvision_ops()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    rng, library = random.Random(seed), Library(held_out=False)
    model: Any = LlamaForCausalLM(LlamaConfig(**{**llama_config(spec), "attn_implementation": "sdpa"}))
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    right: dict[str, float] = defaultdict(float)
    lesson = begun = 0
    started_s = time.monotonic()
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 50, 2.5 * (1 - step / steps))
        prose = lesson >= PROSE_FROM and step % PROSE_EVERY == 0
        loss = _learn(model, _rows(rng, LESSONS[lesson], library if prose else None, right), right)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if lesson + 1 < len(LESSONS) and _learned(LESSONS[lesson], right, step - begun):
            lesson, begun = lesson + 1, step
        if step % 200 == 199:
            shares = "  ".join(f"{kind} {share:.0%}" for kind, share in right.items())
            print(f"{step + 1:5} {time.monotonic() - started_s:5.0f} s  lesson {lesson}  {shares}", flush=True)
    return model


def _learned(lesson: Lesson, right: dict[str, float], steps: int) -> bool:
    return steps >= lesson.most_steps or (steps >= LEAST_STEPS and min(right[kind] for kind in lesson.kinds) > ENOUGH)


def _rows(rng: random.Random, lesson: Lesson, library: Library | None, right: Mapping[str, float]) -> list[Row]:
    texts = rng.choice(lesson.texts or (0,))
    rows: list[Row] = []
    while sum(map(len, rows)) < BATCH_TOKENS:
        rows.append(prose_row(rng, lesson, library) if library else puzzle_row(rng, lesson, texts, right))
    return rows


def _learn(model: Any, rows: Sequence[Row], right: dict[str, float]) -> torch.Tensor:
    """Loss at the answers; keeps count of right ones in ``right``."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[t for t, _, _ in row] + [0] * (longest - len(row)) for row in rows])
    labels = torch.tensor([[label for _, label, _ in row[1:]] + [IGNORED] * (longest - len(row)) for row in rows])
    tokens, labels = tokens.to(model.device), labels.to(model.device)
    asked = labels != IGNORED
    kinds = [kind for row in rows for _, label, kind in row[1:] if label != IGNORED]
    binds = torch.tensor([kind == BIND for kind in kinds], device=model.device)
    states = model.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    within = model.model.norm(states.hidden_states[BOUND_AT][:, :-1][asked])
    logits = model.lm_head(torch.where(binds[:, None], within, states.last_hidden_state[:, :-1][asked]))
    marks = (logits.argmax(-1) == labels[asked]).tolist()
    for kind in dict.fromkeys(kinds):
        of_kind = [mark for mark, own in zip(marks, kinds, strict=True) if own == kind]
        right[kind] = 0.9 * right[kind] + 0.1 * sum(of_kind) / len(of_kind)
    return torch.nn.functional.cross_entropy(logits, labels[asked])


def accuracy(model: Any, seed: int, prompts: int = 100) -> dict[str, float]:
    """Share of answers that are right in every token, by kind of question, on prompts like those of the last lesson."""
    rng, library = random.Random(seed), Library(held_out=True)
    right: dict[str, list[bool]] = defaultdict(list)
    for _ in range(prompts):
        role, puzzle, passage = (
            make_role(rng),
            make_puzzle(rng, LESSONS[-1].texts[-1], LESSONS[-1].statements),
            library.passage(rng),
        )
        for kind in KINDS:
            unit = passage if kind in PASSAGE_KINDS else puzzle
            question = unit.ask(rng, role, kind)
            if question is None:
                continue
            head = [*role, *(t for text in unit.texts for t in text), *question.asked]
            tokens = torch.tensor([[*head, *question.answer]], device=model.device)
            with torch.no_grad():
                drawn = model(input_ids=tokens).logits.argmax(-1)
            right[kind].append(bool((drawn[0, len(head) - 1 : -1] == tokens[0, len(head) :]).all()))
    return {kind: sum(marks) / len(marks) for kind, marks in right.items()}


def write(model: Any, spec: ModelSpec, folder: Path) -> None:
    """Write weights, configuration and tokenizer as SGLang loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(llama_config(spec), indent=1, sort_keys=True))
    tokenizer.write_tokenizer(folder, max_position=spec.max_position)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    made = SMALL if arguments.device == "cpu" else LARGE
    trained = train(made, arguments.steps, arguments.seed, arguments.device)
    print(json.dumps(accuracy(trained, arguments.seed + 1)))
    write(trained, made, arguments.folder)
