"""``python -m kvflow``: the command, where its script is not beside the interpreter."""

from kvflow.cli import app

app(prog_name="kvflow")
