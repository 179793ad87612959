"""``kvflow config``: every setting with its default, as a YAML file to start from."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel


def config() -> None:
    """Print every setting with its meaning and default, as YAML for --kvflow-config."""
    from kvflow.config import Settings

    typer.echo("\n".join(annotated_yaml(Settings)))


def annotated_yaml(model: type[BaseModel], depth: int = 0) -> Iterator[str]:
    """Lines of YAML for a settings model, comments from its attribute docstrings."""
    indent = "  " * depth
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield ""
            yield f"{indent}# {(field.annotation.__doc__ or '').strip()}"
            yield f"{indent}{name}:"
            yield from annotated_yaml(field.annotation, depth + 1)
            continue
        told = field.description or ""
        if get_origin(field.annotation) is Literal:
            told += f" One of: {', '.join(map(str, get_args(field.annotation)))}."
        yield from wrap(told, 118, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        yield f"{indent}{name}: {_scalar(field.default)}"


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
