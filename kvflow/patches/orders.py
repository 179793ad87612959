"""Which eviction orders a server can use."""

from __future__ import annotations

from kvflow.errors import ConfigError
from kvflow.policy import ORACLES, POLICIES, make_policy


def require_servable(name: str) -> None:
    """Check the name of an eviction order.

    Raises:
        ConfigError: there is no such order, or it needs to know what comes.
    """
    if name in ORACLES:
        known = ", ".join(policy for policy in POLICIES if policy not in ORACLES)
        raise ConfigError(
            f"eviction policy {name!r} needs the future: use it in `kvflow simulate`, and serve with one of {known}"
        )
    make_policy(name)
