"""Settings: call argument > ``KVFLOW_*`` variable > YAML file > default, read once at the edge and passed down."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from kvflow.errors import ConfigError

PREFIX = "KVFLOW_"
CONFIG_VARIABLE = "KVFLOW_CONFIG"

_OTHER_VARIABLES = frozenset(
    {"KVFLOW_CONFIG", "KVFLOW_ENABLE", "KVFLOW_URL", "KVFLOW_API_KEY", "KVFLOW_HINTS", "KVFLOW_RECORD"}
)
"""Variables with the prefix that are not settings of the server: where the file is, and the client's own."""
_OTHER_PREFIXES = ("KVFLOW_CPU_", "KVFLOW_TEST_")
"""Ours for other things."""
_KUBERNETES = re.compile(r"KVFLOW_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""What Kubernetes sets in every container for a service whose name begins with kvflow."""


ExclusiveMode = Literal["auto", "always", "never"]
ReuseMode = Literal["off", "rotate", "rotate+repair", "kvcomm", "kvcomm+repair"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Eviction(_Section):
    """Which context leaves the cache first."""

    policy: str = "cost"
    """Eviction order on both tiers. By predictions: ``cost`` (ours: seconds a hit saves, by how soon it is expected,
    per byte), ``steps`` (KVFlow: steps-to-execution), ``ttl`` (Continuum: keep what waits for a tool, until its TTL),
    ``saga`` (SAGA: age, probability of reuse and size). Without: ``lru`` (SGLang's own), ``lfu``, ``slru``, ``tlru``
    (first what a next prompt can do without). Also any entry point of the group ``kvflow.policies``."""
    exclusive: ExclusiveMode = "auto"
    """Let a full host tier drop copies of what the device holds before it loses what only it has, so that the tiers
    hold together as much as both have room for (exclusive caching). ``auto`` does where the device holds at least 24
    chunks of a prompt (``--chunked-prefill-size``), so that there is time to copy again what has to leave it. Not under
    SGLang's own orders, nor while predictions are not trusted."""
    prediction: Literal["earliest", "expected"] = "earliest"
    """Steps as KVFlow counts them (the earliest possible), or their expectation over branches and loops."""


class Guard(_Section):
    """How far predictions are trusted: a shadow LRU measures what following them costs."""

    enabled: bool = True
    """Let predictions choose among fewer and fewer of the oldest leaves while they do worse than LRU, in the end
    evict by recency, and try again later. For ``cost``, and orders of others that ask for it with ``guarded = True``;
    published ones run as they were published."""
    ratio: float = Field(default=0.02, ge=0, le=1)
    """Share of LRU's own cost, in seconds of computing and loading again, that may be lost against it; on the host
    tier, of the tokens it computes again."""
    allowance_prompts: float = Field(default=1.0, ge=0)
    """On top of it, the cost of computing so many prompts, twice as many on the host tier: a young or small cache has
    little to compare with."""


class Admission(_Section):
    """Whose requests run."""

    mode: Literal["fcfs", "workflow"] = "workflow"
    """``workflow`` runs the programs whose contexts fit together, where that pays, and lets the others wait between two
    requests; requests that belong to no workflow are never held. ``fcfs`` leaves it to SGLang."""


class Prefetch(_Section):
    """Loading contexts back from host to device before they are asked for."""

    enabled: bool = True
    """Do it, where the server has a host tier (``--enable-hierarchical-cache``); so for fetches from storage, loads of
    waiting requests in the background, and copies before a long wait."""
    link_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the link's time it may take, at most."""
    max_tokens: int = Field(default=8192, ge=1)
    """Tokens of one load, if nodes are not longer: what requests need themselves waits at most so long behind it."""


class Commands(_Section):
    """Commands on cached context (``kv.pin`` and the others)."""

    pin_share: float = Field(default=0.25, ge=0, le=1)
    """Share of a tier that one tenant may pin or retain; what goes beyond is clipped."""
    pin_hourly_s: float = Field(default=3600.0, gt=0, le=3600)
    """Seconds of every hour for which one tenant may pin all of that share, or half of it twice as long; pins that
    would take more are cut short. An hour: no limit."""
    default_ttl_s: float = Field(default=30.0, gt=0)
    """How long a command holds that does not say."""
    max_ttl_s: float = Field(default=600.0, gt=0)
    """No command holds longer; what asks for more is clipped."""


class Reuse(_Section):
    """Cross-agent reuse of text that is not a prefix, for requests that ask for it."""

    mode: ReuseMode = "off"
    """How KV from another context is corrected: keys moved to their new position; or that, and offsets learned from
    similar texts (KVCOMM), while texts like no other are computed. ``+repair`` computes a part of each nevertheless."""
    memory_gib: float = Field(default=4.0, gt=0)
    """Host memory of each rank for texts and offsets; what was used least recently goes first."""
    min_tokens: int = Field(default=64, ge=32)
    """Shorter runs are computed."""
    repair_tokens: int = Field(default=16, ge=0)
    """Tokens at the start of each text that ``+repair`` computes (EPIC)."""
    repair_share: float = Field(default=0.46, ge=0, le=1)
    """Share of the other tokens that it computes: those whose KV the new context changes most (CacheBlend), and the one
    or two that lie between two of them. Finding them computes the first layers for all tokens."""
    repair_layer: int = Field(default=1, ge=0)
    """Layer, counted from 0, whose keys and values show that."""
    anchors: int = Field(default=20, ge=2)
    """Examples kept of each slot of an agent's prompt (KVCOMM's V)."""
    entropy: float = Field(default=0.3, ge=0, le=1)
    """How undecided between examples a text may be to be served from them (KVCOMM's γ)."""
    agreement: float = Field(default=0.9, ge=0, le=1)
    """Share of checked prompts after which the likeliest next token has to be the same as without reuse, or nearly as
    likely there; a slot below it is computed, and tried again later."""
    divergence: float = Field(default=0.2, ge=0)
    """Mean Kullback-Leibler divergence of the next token's distribution that is still accepted, in nats."""
    check_every: int = Field(default=8, ge=1)
    """One of so many prompts with reuse is computed a second time to compare, once nobody waits for it any more; and
    one of so many workflows, but no more than every fourth, is computed at once, if its type reports outcomes."""
    outcome_loss: float = Field(default=0.05, ge=0, le=1)
    """How much lower the mean outcome of workflows (``kvflow.feedback``) may be with reuse than without."""

    @field_validator("mode", mode="before")
    @classmethod
    def _yaml_off(cls, value: Any) -> Any:
        """YAML reads ``off`` as false."""
        return "off" if value is False else value


class Costs(_Section):
    """What hits save on this model and machine. The defaults suit an 8B model on one GPU of the H100's kind."""

    prefill_token_s: float = Field(default=4.0e-5, gt=0)
    """Seconds to compute one token without attention."""
    attention_token_s: float = Field(default=1.3e-9, ge=0)
    """Seconds to attend to one earlier token; a token at position p takes p of them."""
    load_token_s: float = Field(default=2.6e-6, ge=0)
    """Seconds to load one token from host to device, until some have been measured."""
    learn_loads: bool = True
    """Measure ``load_token_s`` while serving."""
    learn_compute: bool = True
    """Measure by how much prefill batches and decode steps take longer than these costs say, and go by that."""
    storage_token_s: float = Field(default=4.4e-5, ge=0)
    """Seconds to fetch one token from storage to host."""
    prefill_step_s: float = Field(default=8.0e-3, ge=0)
    """Seconds of a prefill batch, its tokens apart."""
    decode_step_s: float = Field(default=8.0e-3, ge=0)
    """Seconds of a decode step without attention."""
    decode_sequence_s: float = Field(default=1.0e-5, ge=0)
    """Seconds each request adds to a decode step."""
    decode_context_token_s: float = Field(default=4.0e-8, ge=0)
    """Seconds each token of context on the device adds to a decode step."""


class Intake(_Section):
    """How hints from clients are taken."""

    strict: bool = True
    """Answer a malformed hint with 400. When false the request runs without its hints."""
    max_workflows: int = Field(default=4096, ge=1, le=1_000_000)
    """Live workflows to keep track of; beyond it the one idle for longest is dropped."""
    workflow_idle_s: float = Field(default=1800.0, gt=0)
    """A workflow that sends nothing for this long, and waits for no answer, is taken for dead. If it waits for no tool
    either, that its contexts are not used again is learned from it."""
    infer: bool = False
    """Tell the workflows of clients that send no hints from what their prompts have in common: those that begin with
    an earlier one go on, those that begin alike are of one type. Without it, their context is in SGLang's order, and
    leaves before hinted context that is expected to be used again."""
    arrival_idle_s: float = Field(default=60.0, ge=0)
    """How long another workflow of a type is expected after the last one has ended."""
    max_agents: int = Field(default=256, ge=1, le=4096)
    """Agents per workflow; facts about further ones are rejected."""


class Pin(_Section):
    """Soft pins while an agent waits for a tool, for ``steps``, ``ttl`` and ``saga``; ``cost`` goes by how long."""

    ttl: Literal["fixed", "learned"] = "fixed"
    """How long a pin lasts when the client does not say how long the tool takes: ``default_ttl_s``, or the time that
    pays best by the durations learned so far (Continuum)."""
    default_ttl_s: float = Field(default=30.0, ge=0)
    """How long a pin lasts if ``ttl`` is ``fixed``."""
    max_ttl_s: float = Field(default=600.0, ge=0)
    """No pin lasts longer, whatever the client says."""
    max_calls: int = Field(default=256, ge=1)
    """Tool calls a workflow can wait for at a time; of more the oldest are forgotten."""


class Graph(_Section):
    """Agent step graphs."""

    learn: bool = True
    """Learn a graph from observed transitions for workflow types that declare none."""
    max_types: int = Field(default=1024, ge=1)
    """Workflow types to keep a graph for."""


class Telemetry(_Section):
    """Counting."""

    ghost_pages: int = Field(default=262_144, ge=0)
    """Page hashes remembered to tell a recompute from a first computation (about 100 bytes each)."""
    journal_entries: int = Field(default=4096, ge=0)
    """Decisions remembered for ``kvflow explain`` (about 300 bytes each)."""


class Settings(BaseSettings):
    """All settings of the server side."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    strict: bool = False
    """A seam that does not hold is an error, not a feature turned off (tests, benchmarks)."""
    eviction: Eviction = Eviction()
    guard: Guard = Guard()
    admission: Admission = Admission()
    prefetch: Prefetch = Prefetch()
    commands: Commands = Commands()
    reuse: Reuse = Reuse()
    costs: Costs = Costs()
    intake: Intake = Intake()
    pin: Pin = Pin()
    graph: Graph = Graph()
    telemetry: Telemetry = Telemetry()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the YAML file named by ``KVFLOW_CONFIG`` below the environment."""
        file = InitSettingsSource(settings_cls, init_kwargs=_of_file())
        return init_settings, EnvSettingsSource(settings_cls), file


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings of this process.

    Args:
        overrides: nested mapping that wins over everything else.

    Raises:
        ConfigError: a setting is unknown or out of range, a ``KVFLOW_`` variable is misspelt, or the file is missing
            or cannot be read.
    """
    _check_variables()
    try:
        return Settings(**(overrides or {}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ConfigError(_told(first["loc"], first["type"], first["msg"], first.get("input"))) from None


def _told(loc: tuple[int | str, ...], kind: str, problem: str, value: Any) -> str:
    """Say what is wrong with a setting, and that it is one of the file's, if it is."""
    where = ".".join(map(str, loc))
    found: Any = _of_file()
    for name in loc:
        found = found.get(name) if isinstance(found, dict) else None
    file = f" in {os.environ[CONFIG_VARIABLE]}" if found is not None and found == value else ""
    if kind == "extra_forbidden":
        return f"{where}{file} is not a kvflow setting; see `kvflow config`"
    return f"setting {where}{file}: {problem} (got {value!r})"


def _of_file() -> dict[str, Any]:
    """Settings of the file that ``KVFLOW_CONFIG`` names; a section of which all is commented out has none."""
    import yaml

    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    named = f"--kvflow-config or {CONFIG_VARIABLE} names {path}, which"
    if not Path(path).is_file():
        raise ConfigError(f"{named} is not a file")
    try:
        found = yaml.safe_load(Path(path).read_text("utf-8")) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{named} cannot be read as YAML: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{named} has no settings by name: see `kvflow config`")
    return {name: value for name, value in found.items() if value is not None}


def _check_variables() -> None:
    """pydantic-settings ignores a misspelt variable without a word; we do not."""
    for name, value in os.environ.items():
        if not name.startswith(PREFIX) or name in _OTHER_VARIABLES or name.startswith(_OTHER_PREFIXES):
            continue
        if _KUBERNETES.fullmatch(name):
            continue
        section, _, field = name.removeprefix(PREFIX).lower().partition("__")
        if section not in Settings.model_fields:
            raise ConfigError(f"environment variable {name} is not a kvflow setting; see `kvflow config`")
        inner = Settings.model_fields[section].annotation
        fields = inner.model_fields if isinstance(inner, type) and issubclass(inner, BaseModel) else {}
        if field and field not in fields:
            raise ConfigError(f"environment variable {name}: section {section} has no setting {field!r}")
        if fields and not field and not _is_json(value):
            raise ConfigError(
                f"environment variable {name} is a section, and {value!r} is not JSON: "
                f"give {name}__{next(iter(fields)).upper()} and others one by one; see `kvflow config`"
            )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
