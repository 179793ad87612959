"""What the data-parallel replicas report, put together."""

from __future__ import annotations

from typing import Any

_STATES = frozenset({"guarded", "active", "share", "host_window_tokens", "queue_s", "gate"})
"""What a replica reports that cannot be added up."""
_EVERYWHERE = frozenset({"live_workflows"})
"""What every replica knows of."""


def add_up(replicas: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum counters field by field, nested mappings included; states are left out."""
    total: dict[str, Any] = {}
    for data in replicas:
        for name, value in data.items():
            if name in _STATES:
                continue
            if name in _EVERYWHERE:
                total[name] = max(total.get(name, 0), value)
            elif isinstance(value, dict):
                total[name] = add_up([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total
