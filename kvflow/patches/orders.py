"""Which eviction orders a server can use."""

from __future__ import annotations

from kvflow.errors import ConfigError
from kvflow.policy import ORACLES, make_policy, policy_names


def require_servable(name: str) -> None:
    """Check the name of an eviction order.

    Raises:
        ConfigError: there is no such order, or it needs to know what comes.
    """
    known = [policy for policy in policy_names() if policy not in ORACLES]
    if name not in known:
        problem = "needs the future: use it in `kvflow simulate`" if name in ORACLES else "does not exist"
        raise ConfigError(f"eviction policy {name!r} {problem}; choose one of {', '.join(known)}")
    make_policy(name)
