"""Where the steps of a round lie: each agent has a row, with lanes for steps that overlap in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvflow.report.axis import Scale
from kvflow.report.result import Arm, Step

LANE_HEIGHT, LOW_LANE_HEIGHT = 14.0, 10.0
PADDING = 3.0
NARROWEST = 2.0
"""Width of the mark of a step that took no time to speak of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one arm did in one round, on a clock that starts with the round."""

    arm: Arm
    steps: tuple[Step, ...]
    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """From the first start to the last end."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows all charts have in common, by agent in the order they are drawn; one has at least one lane."""

    tops: Mapping[str, float]
    heights: Mapping[str, float]
    lane_height: float
    bottom: float


def run_of(arm: Arm, number: int) -> Run:
    """Gather what an arm did in a round; if it did nothing, nothing took no time."""
    steps = tuple(sorted((step for step in arm.steps if step.round == number), key=lambda step: step.start_s))
    workflows = [workflow for workflow in arm.workflows if workflow.round == number]
    begins = [w.start_s for w in workflows if w.start_s is not None] + [step.start_s for step in steps]
    ends = [w.end_s for w in workflows if w.end_s is not None] + [step.end_s for step in steps]
    return Run(arm=arm, steps=steps, begin_s=min(begins, default=0.0), end_s=max(ends, default=0.0))


def rows_of(agents: Sequence[str], charts: Iterable[tuple[Run, Scale]], top: float) -> Rows:
    """Make the rows that suit every chart, given as what happened and on which time scale it is drawn.

    Args:
        agents: all that occur, in the order of their rows.
        charts: every arm in every round.
        top: where the first row begins.
    """
    lanes = dict.fromkeys(agents, 1)
    for run, x in charts:
        for step, lane in packed(run.steps, x):
            lanes[step.agent] = max(lanes[step.agent], lane + 1)
    lane_height = LANE_HEIGHT if max(lanes.values()) <= 2 else LOW_LANE_HEIGHT
    heights = {agent: max(lanes[agent] * lane_height, LANE_HEIGHT) + 2 * PADDING for agent in agents}
    ends = list(accumulate(heights.values(), initial=top))
    tops = dict(zip(agents, ends, strict=False))
    return Rows(tops=tops, heights=heights, lane_height=lane_height, bottom=ends[-1])


def packed(steps: Iterable[Step], x: Scale) -> list[tuple[Step, int]]:
    """Give every step, in order of start, the first lane of its agent's row that is free, counting marks as drawn."""
    width_s = NARROWEST * x.high / (x.end - x.start)
    free: dict[str, list[float]] = defaultdict(list)
    placed: list[tuple[Step, int]] = []
    for step in steps:
        lanes = free[step.agent]
        lane = next((i for i, end in enumerate(lanes) if end <= step.start_s), len(lanes))
        lanes[lane : lane + 1] = [max(step.end_s, step.start_s + width_s)]
        placed.append((step, lane))
    return placed
