"""What the client is told from outside: ``kvflow.configure`` over ``KVFLOW_*`` variables over defaults."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from kvflow.errors import ConfigError

logger = logging.getLogger(__name__)

HintMode = Literal["always", "auto", "off"]
_OFF = frozenset({"0", "false", "no"})
"""Other ways of saying it in ``KVFLOW_HINTS``."""


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
        if self.url is not None and not _is_url(self.url):
            raise ConfigError(f"url must be the URL of a server, such as http://localhost:30000, not {self.url!r}")


def from_environment(environment: Mapping[str, str] = os.environ) -> ClientSettings:
    """Read ``KVFLOW_URL``, ``KVFLOW_API_KEY`` and ``KVFLOW_HINTS``.

    A wrong value is logged and taken for the default: a typing error must not end somebody's program half way.
    """
    settings = ClientSettings(api_key=environment.get("KVFLOW_API_KEY") or None)
    hints = environment.get("KVFLOW_HINTS", "").lower()
    values = {"url": environment.get("KVFLOW_URL"), "hints": "off" if hints in _OFF else hints}
    for name, value in values.items():
        if value:
            try:
                settings = replace(settings, **{name: value})  # type: ignore[arg-type]
            except ConfigError as error:
                logger.warning("KVFLOW_%s is ignored: %s", name.upper(), error)
    return settings


def _is_url(text: str) -> bool:
    import httpx  # slow to import, and the server that has the URL needs it anyway

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        return False
    return url.scheme in ("http", "https") and bool(url.host)
