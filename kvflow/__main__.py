"""``python -m kvflow``: the command, where its script is not beside the interpreter."""

from kvflow.cli import app

if __name__ == "__main__":
    app(prog_name="kvflow")
