"""What the client is told from outside: ``kvflow.configure`` over ``KVFLOW_*`` variables over defaults."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from kvflow.errors import ConfigError

logger = logging.getLogger(__name__)

HintMode = Literal["always", "auto", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of the client library in this process.

    Attributes:
        url: root of a server that hears every fact, besides those of the instrumented clients.
        api_key: sent to ``url`` as bearer token, and nowhere else.
        hints: ``auto`` hints servers known to speak kvflow, ``always`` hints every server, ``off`` none.
    """

    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    hints: HintMode = "auto"

    def __post_init__(self) -> None:
        if self.hints not in get_args(HintMode):
            raise ConfigError(f"hints must be one of {', '.join(get_args(HintMode))}, not {self.hints!r}")


def from_environment(environment: Mapping[str, str] = os.environ) -> ClientSettings:
    """Read ``KVFLOW_URL``, ``KVFLOW_API_KEY`` and ``KVFLOW_HINTS``.

    A wrong value is logged and taken for the default: a typing error must not end somebody's program half way.
    """
    url = environment.get("KVFLOW_URL") or None
    api_key = environment.get("KVFLOW_API_KEY") or None
    hints = environment.get("KVFLOW_HINTS") or "auto"
    try:
        return ClientSettings(url=url, api_key=api_key, hints=hints)  # type: ignore[arg-type]
    except ConfigError as error:
        logger.warning("KVFLOW_HINTS is ignored: %s", error)
        return ClientSettings(url=url, api_key=api_key)
