"""Which SGLang kvflow supports; declared once, in the ``sglang`` extra of the distribution's metadata."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kvflow.errors import UnsupportedEngineError


def supported() -> SpecifierSet:
    """Versions of SGLang this kvflow was tested with.

    Raises:
        UnsupportedEngineError: kvflow's own metadata is missing, so it was not installed with pip.
    """
    for requirement in _declared():
        if requirement.name == "sglang":
            return requirement.specifier
    raise UnsupportedEngineError("kvflow metadata without an sglang extra", "an intact installation")


def requirements() -> list[Requirement]:
    """What kvflow needs wherever it runs, extras apart.

    Raises:
        UnsupportedEngineError: as :func:`supported` does.
    """
    return [one for one in _declared() if one.marker is None or one.marker.evaluate({"extra": ""})]


def _declared() -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires("kvflow") or []]
    except metadata.PackageNotFoundError:
        raise UnsupportedEngineError("kvflow without package metadata", "an installation with pip") from None


def installed() -> Version | None:
    """Version of the SGLang that would be imported, None without one."""
    try:
        return Version(metadata.version("sglang"))
    except metadata.PackageNotFoundError:
        return None


def require_supported() -> Version:
    """Check the installed SGLang.

    Raises:
        UnsupportedEngineError: there is none, or it is outside the supported range.
    """
    version, wanted = installed(), supported()
    if version is None or not wanted.contains(version, prereleases=True):
        found = f"sglang {version}" if version else "no sglang"
        raise UnsupportedEngineError(found, f"sglang{wanted}; pip install 'sglang{wanted}'")
    return version
