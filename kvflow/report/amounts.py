"""Numbers as people read them."""

from __future__ import annotations

import math

NOTHING = "–"
"""What stands where nothing was measured."""

NBSP = "\N{NO-BREAK SPACE}"

_BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def amounts(values: tuple[float | None, ...], unit: str) -> tuple[tuple[str, ...], str]:
    """Format values that will be compared with each other: same unit, same number of decimals.

    Returns:
        The texts, and the unit they are in; bytes become the largest decimal unit that fits all.
    """
    known = [abs(value) for value in values if value]
    if unit in ("bytes", "B") and known:
        power = min(max(int(math.log10(max(known)) // 3), 0), len(_BYTE_UNITS) - 1)
        values = tuple(None if value is None else value / 1000**power for value in values)
        unit = _BYTE_UNITS[power]
    decimals = _decimals([value for value in values if value])
    return tuple(NOTHING if value is None else f"{value:,.{decimals}f}" for value in values), unit


def seconds(value: float) -> str:
    """Format a duration with three significant digits at least: ``0.0412 s``, ``9.70 s``, ``1,234 s``."""
    return f"{value:,.{_decimals([value] if value else [])}f}{NBSP}s"


def percent(share: float) -> str:
    """Format a share of 1 with at most three significant digits: ``70 %``, ``0.5 %``."""
    return f"{100 * share:.3g}{NBSP}%"


def factor(ratio: float | None) -> str:
    """Format a ratio with two decimals, small ones with two significant digits."""
    if ratio is None:
        return NOTHING
    return f"{ratio:.2f}" if abs(ratio) >= 0.1 or ratio == 0 else f"{ratio:.2g}"


def _decimals(values: list[float]) -> int:
    """Return the decimals at which the smallest of several values, none of them zero, shows three digits, at most 4."""
    if all(float(value).is_integer() for value in values):
        return 0
    smallest = min(abs(value) for value in values)
    return min(max(2 - math.floor(math.log10(smallest)), 0), 4)
