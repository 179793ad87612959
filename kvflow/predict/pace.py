"""How long an agent's LLM steps take, queueing included."""

from __future__ import annotations

import math
from collections import OrderedDict

from kvflow.predict.bounds import MAX_NAME_CHARS, touched

MAX_KEYS = 1024
"""Workflow types and agents remembered; the one not seen for longest is forgotten."""
MAX_WORKFLOWS = 8192
"""Workflows whose own speed is remembered."""
COLD_START_S = 5.0
"""A step, before any was seen: agents' calls take 2 to 5 s at the median, a few times that at the 90th percentile."""
_SHRINKAGE = 4.0
_WINDOW = 64.0
"""Observations of a key over which the mean is taken, older ones fading."""
_OWN_SHRINKAGE = 4.0
"""Steps at the pace of its peers that a workflow's own pace is mixed with."""
_OWN_FADE = 0.875
"""What a workflow's step still counts after the next one: load changes within a run, too."""
_MOST = 8.0
_LONGEST_S = 1e5
_MAX_ID_CHARS = 256


class Pace:
    """Learns the time from a step's start to its end, per workflow type and agent, and per workflow.

    A workflow's own factor says how slow it is relative to its peers (longer outputs, a slower client, a worse place in
    the queue): seconds taken over seconds expected, both fading, mixed with four steps of exactly the expected length;
    8 at most, and since eight steps count at most, 1/3 at least.

    What cannot be used (a negative or infinite time, an empty or overlong name) is ignored. Steps of more than 10^5 s
    count as 10^5 s.

    Source: ours; running means and variances after Welford (Technometrics 1962), fading, shrunk as in
        :class:`~kvflow.predict.DurationModel`.
    Cost: O(1).

    Args:
        max_keys: workflow types and agents remembered.
        max_workflows: workflows whose own speed is remembered.
        cold_start_s: a step, before any was seen.
    """

    def __init__(
        self, *, max_keys: int = MAX_KEYS, max_workflows: int = MAX_WORKFLOWS, cold_start_s: float = COLD_START_S
    ) -> None:
        self._all = _Mean()
        self._cold_start_s = cold_start_s
        self._keys: OrderedDict[tuple[str, str | None], _Mean] = OrderedDict()
        self._workflows: OrderedDict[str, _Own] = OrderedDict()
        self._max_keys = max_keys
        self._max_workflows = max_workflows

    def __len__(self) -> int:
        return len(self._keys) + len(self._workflows)

    def observe_step(self, workflow_id: str, workflow_type: str, agent: str, seconds: float) -> None:
        """Learn from a step that has ended."""
        if not (0 <= seconds < math.inf and 0 < len(workflow_id) <= _MAX_ID_CHARS):
            return
        if not (0 < len(workflow_type) <= MAX_NAME_CHARS and 0 < len(agent) <= MAX_NAME_CHARS):
            return
        seconds = min(seconds, _LONGEST_S)
        own = touched(self._workflows, workflow_id, self._max_workflows, _Own)
        own.add(seconds, self.typical_s(workflow_type, agent))
        self._all.add(seconds)
        for key in ((workflow_type, agent), (workflow_type, None)):
            touched(self._keys, key, self._max_keys, _Mean).add(seconds)

    def step_s(self, workflow_id: str, workflow_type: str, agent: str) -> float:
        """Return how long this workflow's next step of an agent takes on average."""
        return self.typical_s(workflow_type, agent) * self.factor(workflow_id)

    def typical_s(self, workflow_type: str, agent: str) -> float:
        """Return how long a step of an agent takes on average in any workflow of a type."""
        typical_s = self._all.shrunk(self._cold_start_s)
        for name in ((workflow_type, None), (workflow_type, agent)):
            mean = self._keys.get(name)
            if mean is not None:
                typical_s = mean.shrunk(typical_s)
        return typical_s

    def spread_s(self, workflow_type: str, agent: str) -> float:
        """Return the standard deviation of an agent's steps; of an agent never seen that of its like, at first 5 s."""
        for mean in (self._keys.get((workflow_type, agent)), self._keys.get((workflow_type, None)), self._all):
            if mean is not None and mean.weight >= 2:
                return math.sqrt(mean.variance)
        return self._cold_start_s

    def factor(self, workflow_id: str) -> float:
        """Return how slow a workflow is relative to its peers: 2 means twice their time, 1 is all that is known."""
        own = self._workflows.get(workflow_id)
        return 1.0 if own is None else own.factor

    def forget(self, workflow_id: str) -> None:
        """Forget a workflow that has ended; one that is not known is no error."""
        self._workflows.pop(workflow_id, None)


class _Mean:
    """Mean and variance: of all observations until there are 64, then fading."""

    __slots__ = ("mean", "variance", "weight")

    def __init__(self) -> None:
        self.weight = self.mean = self.variance = 0.0

    def add(self, value: float) -> None:
        self.weight = min(_WINDOW, self.weight + 1)
        share = 1 / self.weight
        off = value - self.mean
        self.mean += share * off
        self.variance = (1 - share) * (self.variance + share * off * off)

    def shrunk(self, wider: float) -> float:
        """Return the mean, shrunk towards that of a wider key."""
        return (self.weight * self.mean + _SHRINKAGE * wider) / (self.weight + _SHRINKAGE)


class _Own:
    """Seconds a workflow's steps took, and would have taken its peers, fading."""

    __slots__ = ("_expected_s", "_steps", "_taken_s")

    def __init__(self) -> None:
        self._taken_s = self._expected_s = self._steps = 0.0

    def add(self, taken_s: float, expected_s: float) -> None:
        self._taken_s = _OWN_FADE * self._taken_s + taken_s
        self._expected_s = _OWN_FADE * self._expected_s + expected_s
        self._steps = _OWN_FADE * self._steps + 1

    @property
    def factor(self) -> float:
        expected_s = self._expected_s
        if expected_s <= 0:
            return 1.0
        peers_s = _OWN_SHRINKAGE * expected_s / self._steps
        return min(_MOST, (self._taken_s + peers_s) / (expected_s + peers_s))
