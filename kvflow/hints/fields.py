"""What the payloads of facts and commands are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

MAX_NAME = 128
MAX_IDENTIFIER = 256

Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=MAX_IDENTIFIER)]
Word = Annotated[str, StringConstraints(max_length=MAX_IDENTIFIER)]
"""What others write too, and is said again in answers; it may be empty."""


class Strict(BaseModel):
    """A payload of ours: every key is known, every value of its type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
