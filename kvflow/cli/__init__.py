"""The ``kvflow`` command; one module a verb."""

from __future__ import annotations

import typer

from kvflow.cli import compare, config, demo, doctor, explain, graph, predict, replay, serve, sim, simulate, top, trace

app = typer.Typer(
    name="kvflow",
    help="Manage SGLang's KV cache by what multi-agent programs do next.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(doctor.doctor)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve.serve)
app.command()(demo.demo)
app.command()(simulate.simulate)
app.command()(replay.replay)
app.command()(compare.compare)
app.command()(config.config)
app.command()(explain.explain)
app.command()(top.top)
app.add_typer(graph.app, name="graph")
app.add_typer(predict.app, name="predict")
app.add_typer(sim.app, name="sim")
app.add_typer(trace.app, name="trace")

__all__ = ["app"]
