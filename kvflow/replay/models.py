"""Models of the profiles, which are made where a server is about to be launched with them."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

from kvflow.errors import ConfigError
from kvflow.patches.cpu import tokenizer
from kvflow.patches.cpu.model import ModelSpec, build_model, llama_config

LLAMA_8B = ModelSpec(
    hidden_size=4096, intermediate_size=14336, layers=32, heads=32, kv_heads=8, max_position=131072, dtype="bfloat16"
)
"""But for the vocabulary, which is that of the byte tokenizer: a prefill computes one row of logits."""


class Recipe(StrEnum):
    """What a model is made of: tiny random weights, or a geometry for which SGLang makes weights up."""

    TINY = "tiny"
    GEOMETRY = "geometry"


def make_model(recipe: Recipe, folder: Path) -> None:
    """Make a model, if it is not there yet.

    Raises:
        ConfigError: the folder holds files of somebody else.
    """
    if recipe == Recipe.TINY:
        build_model(folder)
        return
    config = folder / "config.json"
    if not config.exists():
        write_geometry(folder)
    elif config.read_text() != json.dumps(llama_config(LLAMA_8B)):
        raise ConfigError(f"{folder} holds another model, or one of an older kvflow: remove it, or name another folder")


def write_geometry(folder: Path) -> None:
    """Write a configuration and a tokenizer for :data:`LLAMA_8B`, and no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.write_tokenizer(folder, max_position=LLAMA_8B.max_position)
    (folder / "config.json").write_text(json.dumps(llama_config(LLAMA_8B)))
