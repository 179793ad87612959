"""The exception tree of kvflow.

    KVFlowError
    ├─ ConfigError (ValueError)
    ├─ GraphError
    │  ├─ UnknownAgentError (KeyError)
    │  ├─ UnreachableEndError
    │  └─ BadProbabilityError (ValueError)
    ├─ HintDecodeError (ValueError)
    ├─ TraceError (ValueError)
    ├─ EngineError
    │  ├─ UnsupportedEngineError
    │  ├─ ReuseUnsupportedError
    │  └─ SeamMissingError
    ├─ ServerUnavailableError (ConnectionError)
    └─ MissingExtraError (ImportError)

Leaf classes also subclass the builtin a caller would expect to catch. A message says what is wrong, where,
and what to do about it.
"""

from __future__ import annotations

from importlib.util import find_spec


class KVFlowError(Exception):
    """Root of every exception kvflow raises on purpose."""

    def __str__(self) -> str:
        # KeyError would show the repr of its argument.
        return str(self.args[0]) if self.args else ""


class ConfigError(KVFlowError, ValueError):
    """A setting is unknown, out of range or contradicts another one."""


class GraphError(KVFlowError):
    """An agent step graph is malformed."""


class UnknownAgentError(GraphError, KeyError):
    """An agent name does not occur in the graph it was looked up in.

    Attributes:
        agent: the name that was asked for.
        known: the names the graph has, sorted.
    """

    def __init__(self, agent: str, known: tuple[str, ...]) -> None:
        self.agent = agent
        self.known = known
        super().__init__(f"agent {agent!r} is not in the graph; it has: {', '.join(known) or 'no agents'}")


class UnreachableEndError(GraphError):
    """No path leads from START to END, so the workflow could never finish."""


class BadProbabilityError(GraphError, ValueError):
    """A branch probability is outside [0, 1], or the branches of one agent add up to more than 1."""


class HintDecodeError(KVFlowError, ValueError):
    """A hint does not have the documented shape.

    Attributes:
        field: dotted path of the offending field, e.g. ``actions.0.payload.agent``.
    """

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"kv_hints: {field}: {problem}")


class TraceError(KVFlowError, ValueError):
    """A trace cannot be read: the file is missing, broken or of an unknown kind."""


class EngineError(KVFlowError):
    """Something is wrong between kvflow and the SGLang it runs in."""


class UnsupportedEngineError(EngineError):
    """The installed SGLang, or the way it was started, is not supported.

    Attributes:
        found: what is there.
        wanted: what kvflow supports.
    """

    def __init__(self, found: str, wanted: str) -> None:
        self.found = found
        self.wanted = wanted
        super().__init__(f"found {found}, but kvflow needs {wanted}")


class ReuseUnsupportedError(EngineError):
    """This model, or the way it is served, is none that KV can be reused in."""

    def __init__(self, found: str) -> None:
        super().__init__(f"KV cannot be reused with {found}")


class SeamMissingError(EngineError):
    """A touching point with SGLang is not there or has another signature.

    Attributes:
        seams: names of the seams that do not hold.
    """

    def __init__(self, seams: tuple[str, ...], detail: str) -> None:
        self.seams = seams
        super().__init__(f"seams that do not hold: {', '.join(seams)}: {detail}")


class ServerUnavailableError(KVFlowError, ConnectionError):
    """No server answers at the given URL."""


class MissingExtraError(KVFlowError, ImportError):
    """An optional dependency is not installed; the message is the pip line that installs it."""

    def __init__(self, extra: str, purpose: str) -> None:
        self.extra = extra
        super().__init__(f'{purpose} needs an optional package: pip install ".[{extra}]" in a clone of kvflow')


def require_installed(package: str, extra: str, purpose: str) -> None:
    """Make sure that a package of an extra is there, without importing it.

    Raises:
        MissingExtraError: it is not; the message names the purpose and what to install.
    """
    if find_spec(package) is None:
        raise MissingExtraError(extra, purpose)
