"""SGLang's health check, which takes any message of the schedulers for a sign that requests are answered."""

from __future__ import annotations

from typing import Any

from kvflow.patches.seams import resolve

PREFIX = "sglang.srt.constants.HEALTH_CHECK_RID_PREFIX"
"""Where SGLang says what the ids of its health checks begin with."""


def check_under_way(tokenizer_manager: Any) -> bool:
    """Whether a health check is under way, or may be: where they cannot be told from requests, one always may."""
    try:
        prefix = resolve(PREFIX)
    except (ImportError, AttributeError):
        return True
    return any(rid.startswith(prefix) for rid in tokenizer_manager.rid_to_state)
