"""Check every seam without attaching any: ``python -m kvflow.patches.check`` prints their states as JSON."""

from __future__ import annotations

import json

from kvflow.patches.catalog import SEAMS
from kvflow.patches.seams import problem_of, state_of


def main() -> None:
    """Print one JSON array, last on standard output."""
    print(json.dumps([state_of(seam, problem_of(seam)).as_dict() for seam in SEAMS]))


if __name__ == "__main__":
    main()
