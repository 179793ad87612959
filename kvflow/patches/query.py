"""The HTTP process's channel for questions to the schedulers."""

from __future__ import annotations

from sglang.srt.managers import tokenizer_control_mixin

from kvflow.patches.messages import KvflowAnswer

NAME = "kvflow"


def register() -> None:
    """Have SGLang's tokenizer manager build ``kvflow_communicator`` (seam ``http.communicator``)."""
    specs = tokenizer_control_mixin._COMMUNICATOR_SPECS
    if all(spec[0] != NAME for spec in specs):
        specs.append((NAME, KvflowAnswer))
