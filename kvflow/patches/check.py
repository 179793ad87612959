"""Check every seam without attaching any: ``python -m kvflow.patches.check`` prints their states as JSON."""

from __future__ import annotations

import json

from kvflow.patches.catalog import SEAMS
from kvflow.patches.seams import SeamState, problem_of


def main() -> None:
    """Print one JSON array, last on standard output."""
    states = []
    for seam in SEAMS:
        problem = problem_of(seam)
        state = SeamState(
            name=seam.name,
            feature=seam.feature,
            kind=seam.kind,
            target=seam.target,
            holds=not problem,
            problem=problem,
        )
        states.append(state.as_dict())
    print(json.dumps(states))


if __name__ == "__main__":
    main()
