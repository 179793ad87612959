"""``kvflow graph``: check, draw and question an agent step graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvflow.errors import GraphError

if TYPE_CHECKING:
    from kvflow.graph import AgentStepGraph

app = typer.Typer(help="Check, draw and question an agent step graph.", no_args_is_help=True)

GraphFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Graph in YAML or JSON.")]


@app.command()
def draw(
    file: GraphFile,
    dot: Annotated[bool, typer.Option("--dot", help="Graphviz instead of Mermaid.")] = False,
) -> None:
    """Print the graph as Mermaid or DOT."""
    from kvflow.graph import to_dot, to_mermaid

    graph = _load(file)
    typer.echo(to_dot(graph) if dot else to_mermaid(graph))


@app.command()
def steps(
    file: GraphFile,
    active: Annotated[list[str] | None, typer.Option("--active", help="Agent that runs now; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Show steps-to-execution of every agent."""
    from kvflow.graph import START, steps_to_execution

    graph = _load(file)
    try:
        result = steps_to_execution(graph, frozenset(active or [START]))
    except GraphError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(result))
        return
    for agent, count in result.items():
        typer.echo(f"{'-' if count is None else count:>4}  {agent}")


def _load(file: Path) -> AgentStepGraph:
    from kvflow.graph import load

    try:
        return load(file)
    except GraphError as error:
        raise typer.BadParameter(str(error)) from None
