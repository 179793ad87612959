"""Arms: configurations of the server that are compared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx

from kvflow.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration.

    Attributes:
        flags: of SGLang, on top of those all arms share.
        env: variables of the server.
        host: whether it has the host tier, if the others have one.
        hints: whether programs tell what they do; only kvflow listens.
        reuse: whether programs that tell what they do let texts of their prompts be reused.
        sessions: whether programs name their requests' session, as SGLang's session-aware cache wants it.
        url: a server that runs already; None to launch one.
    """

    name: str
    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    host: bool = True
    hints: bool = False
    reuse: bool = False
    sessions: bool = False
    url: str | None = None

    @property
    def slug(self) -> str:
        """Its name in names of files."""
        return self.name.replace(" ", "-")

    @property
    def kvflow(self) -> bool:
        """Whether its server has to run kvflow."""
        return "--enable-kvflow" in self.flags or self.hints


def _kvflow(name: str, *flags: str, hints: bool = True, reuse: bool = False, **env: str) -> Arm:
    return Arm(name=name, flags=("--enable-kvflow", *flags), env=tuple(env.items()), hints=hints, reuse=reuse)


_TLRU = '{"threshold": 8192, "next_prompt_estimate": 1024}'
"""Tokens that may be computed in time, and tokens of a next prompt; those of kvflow's own ``tlru``."""
_FCFS = ("--kvflow-admission", "fcfs")
OURS = ("--host", "--port", "--api-key")
PRESETS = {
    arm.name: arm
    for arm in (
        Arm(name="no-host", host=False),
        Arm(name="lru"),
        Arm(name="slru", flags=("--radix-eviction-policy", "slru")),
        Arm(name="tlru", flags=("--radix-eviction-policy", "tlru", "--radix-eviction-policy-config", _TLRU)),
        Arm(name="session", flags=("--enable-session-radix-cache",), sessions=True),
        Arm(name="lpm", flags=("--schedule-policy", "lpm")),
        _kvflow("kvflow"),
        _kvflow("kvflow-fcfs", *_FCFS),
        _kvflow("kvflow-steps", *_FCFS, "--kvflow-policy", "steps"),
        _kvflow("kvflow-ttl", *_FCFS, "--kvflow-policy", "ttl", KVFLOW_PIN__TTL="learned"),
        _kvflow("kvflow-no-prefetch", KVFLOW_PREFETCH__ENABLED="false"),
        _kvflow("kvflow-reuse", reuse=True, KVFLOW_REUSE__MODE="kvcomm+repair"),
        _kvflow("kvflow-infer", "--kvflow-infer", hints=False),
        _kvflow("kvflow-silent", hints=False),
    )
}
"""Arms by name: what SGLang has to offer, and kvflow with this and that turned off."""

DEFAULT = ("lru", "kvflow")
DEFAULT_FOUND = ("silent=no-hints", "telling=hints")
"""Of a server that runs already, which can only be used in different ways."""
_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_SWITCHES = {
    "hints": {"hints": True},
    "no-hints": {"hints": False, "reuse": False},
    "reuse": {"hints": True, "reuse": True},
    "no-host": {"host": False},
    "sessions": {"sessions": True},
}


def parse_arm(text: str) -> Arm:
    """Read ``NAME`` of a preset, or ``NAME=SETTINGS``.

    Settings are words: ``@PRESET``, the first, to begin with one; ``hints``, ``no-hints``, ``reuse``, ``sessions``,
    ``no-host``; ``VARIABLE=VALUE`` of the server's environment; a URL of a server that runs; anything else is a flag of
    SGLang.

    Raises:
        ConfigError: it is neither, has settings before its preset, or a URL that is none.
    """
    name, equals, settings = text.partition("=")
    name = name.strip()
    if not re.fullmatch(r"[\w.+-]+(?: [\w.+-]+)*", name):
        raise ConfigError(f"{text!r} is no arm: give the name of one ({', '.join(PRESETS)}) or NAME=SETTINGS")
    if not equals:
        return preset(name)
    words = flag_words(settings, f"arm {name!r}")
    late = next((word for word in words[1:] if word.startswith("@")), None)
    if late is not None:
        raise ConfigError(f"arm {name!r} has {late} after other settings, which it would replace: give {late} first")
    arm = Arm(name=name)
    for word in words:
        arm = _with(arm, word)
    begun = bool(words) and words[0].startswith("@")
    if "--enable-kvflow" in arm.flags and not {"hints", "no-hints", "reuse"} & set(words) and not begun:
        arm = replace(arm, hints=True)
    return arm


def flag_words(text: str, where: str) -> list[str]:
    """Divide a command line into words.

    Raises:
        ConfigError: a quotation is open, or it says where a server listens or what key it wants.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{where} cannot be read: {error}") from None
    for name in OURS:
        if any(word.partition("=")[0] == name for word in words):
            raise ConfigError(
                f"{where} has {name}: leave it out; servers started for a replay listen on a free port of this "
                "machine's loopback, without a key"
            )
    return words


def flag_of(words: Sequence[str], name: str) -> str | None:
    """Find the value of a flag, the last one where it is given twice; None if it is not there."""
    found = None
    for index, word in enumerate(words):
        own, equals, value = word.partition("=")
        if own == name:
            found = value if equals else "".join(words[index + 1 : index + 2])
    return found


def server_url(text: str) -> str:
    """Read the address of a server; that of its OpenAI-compatible API will do.

    Raises:
        ConfigError: it is none.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{text!r} is no address of a server ({error}): give one like http://HOST:30000") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{text!r} is no address of a server: give one like http://HOST:30000")
    return text.rstrip("/").removesuffix("/v1")


def preset(name: str) -> Arm:
    """Find an arm that has a name of its own.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no arm {name!r}: give one of {', '.join(PRESETS)}, or {name}=SETTINGS")
    return PRESETS[name]


def parse_arms(texts: Sequence[str], url: str | None = None) -> list[Arm]:
    """Read arms; the first is the one the others are compared with.

    Args:
        texts: the arms; without any those of :data:`DEFAULT` or :data:`DEFAULT_FOUND`.
        url: of a server that runs, for arms that do not name one.

    Raises:
        ConfigError: an arm or the URL cannot be read, two arms have the same name, or one wants another server than the
            one it names.
    """
    texts = texts or (DEFAULT if url is None else DEFAULT_FOUND)
    arms = [parse_arm(text) for text in texts]
    if url is not None:
        arms = [replace(arm, url=arm.url or server_url(url)) for arm in arms]
    slugs = [arm.slug for arm in arms]
    twice = next((arm.name for arm in arms if slugs.count(arm.slug) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two arms are called {twice!r}, in which spaces count as hyphens: give them different names, "
            f"e.g. '{twice}-2=@{twice}'"
        )
    for text, arm in zip(texts, arms, strict=True):
        if arm.url is not None and (arm.flags or arm.env or not arm.host or "=" not in text):
            raise ConfigError(
                f"arm {arm.name!r} is a way to launch a server, and the one at {arm.url} runs already: "
                "there an arm is NAME=hints, NAME=no-hints, NAME=reuse or NAME=sessions"
            )
    return arms


def _with(arm: Arm, word: str) -> Arm:
    if word.startswith("@"):
        return replace(preset(word[1:]), name=arm.name)
    if word in _SWITCHES:
        return replace(arm, **_SWITCHES[word])
    if word.startswith(("http://", "https://")):
        return replace(arm, url=server_url(word))
    if match := _VARIABLE.fullmatch(word):
        return replace(arm, env=(*arm.env, (match[1], match[2])))
    return replace(arm, flags=(*arm.flags, word))
