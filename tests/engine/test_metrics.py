"""The series of ``/metrics``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvflow.patches import metrics

pytestmark = [pytest.mark.engine, pytest.mark.beside]

DOCS = Path(__file__).parents[2] / "docs"


def test_series_that_documents_name_exist() -> None:
    published = {f"kvflow_{name}_total" for name, _ in metrics._COUNTERS} | {
        f"kvflow_{name}" for name, _ in metrics._GAUGES
    }
    named = set(re.findall(r"kvflow_[a-z_]+", (DOCS / "operating.md").read_text()))
    assert named
    assert named <= published
