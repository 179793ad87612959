"""How long things take: a machine and a model, or times that were measured."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvflow.errors import ConfigError
from kvflow.policy import ServingCosts

_OTHER_KINDS = ("kv_lora_rank", "num_local_experts", "n_routed_experts", "num_experts")
"""Keys of a model's configuration: of those that keep less KV than their heads have, or use some of their weights."""
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Record):
    """Geometry of a model, by the names of a Hugging Face ``config.json``.

    Attributes:
        parameters: number of weights that take part in one token.
        head_dim: width of a head; all of them together need not be as wide as the hidden state.
        bytes_per_value: of weights and KV.
    """

    parameters: Positive = 8.03e9
    num_hidden_layers: int = Field(default=32, ge=1)
    num_attention_heads: int = Field(default=32, ge=1)
    num_key_value_heads: int = Field(default=8, ge=1)
    head_dim: int = Field(default=128, ge=1)
    bytes_per_value: Positive = 2

    @property
    def kv_bytes_per_token(self) -> float:
        """KV of one token, all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * self.bytes_per_value

    @property
    def attention_width(self) -> int:
        """Values of all heads of a layer, for one token."""
        return self.num_attention_heads * self.head_dim

    @classmethod
    def read(cls, path: Path) -> Model:
        """Read the geometry from a model's ``config.json``; the weights are counted from it.

        Raises:
            ConfigError: the file cannot be read, lacks what is needed, or is of a model with experts or compressed KV.
        """
        data = _load(path)
        unlike = next((name for name in _OTHER_KINDS if data.get(name)), None)
        if unlike is not None:
            raise ConfigError(
                f"{path} has {unlike!r}: how long such a model takes does not follow from its geometry; measure a "
                "server that runs it (kvflow sim measure, kvflow sim fit) and give that as profile"
            )
        try:
            hidden, layers = int(data["hidden_size"]), int(data["num_hidden_layers"])
            heads = int(data["num_attention_heads"])
            kv_heads = int(data.get("num_key_value_heads") or heads)
            head_dim = int(data.get("head_dim") or hidden // heads)
            inner, vocabulary = int(data["intermediate_size"]), int(data["vocab_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is no model configuration kvflow understands: {error!r}") from None
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        embeddings = vocabulary * hidden * (1 if data.get("tie_word_embeddings") else 2)
        return cls(
            parameters=layers * (attention + 3 * hidden * inner) + embeddings,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
        )


class Machine(_Record):
    """A machine by its data sheet, with the share of it that serving reaches.

    Attributes:
        storage_bytes_s: how fast the storage tier reads and writes.
        prefill_step_s: fixed time of a prefill batch.
        decode_step_s: fixed time of a decode step, weights not counted.
        decode_sequence_s: time each running request adds to it.
        chunk_tokens: chunked prefill size.
    """

    name: str
    notes: str = ""
    flops: Positive
    flops_efficiency: Positive = 0.5
    memory_bytes_s: Positive
    memory_efficiency: Positive = 0.7
    link_bytes_s: Positive
    link_efficiency: Positive = 0.8
    storage_bytes_s: Positive = 3e9
    prefill_step_s: Seconds = 0.01
    decode_step_s: Seconds = 0.004
    decode_sequence_s: Seconds = 1e-5
    chunk_tokens: int = Field(default=8192, ge=1)

    def profile(self, model: Model) -> Profile:
        """Times of a model on this machine.

        ``FLOPs = 2N(b-a) + 2Ld(b²-a²)``, with d as wide as all heads of a layer; a decode step reads weights and KV.
        """
        flops = self.flops * self.flops_efficiency
        memory = self.memory_bytes_s * self.memory_efficiency
        link = self.link_bytes_s * self.link_efficiency
        kv = model.kv_bytes_per_token
        return Profile(
            name=self.name,
            notes=self.notes,
            prefill_step_s=self.prefill_step_s,
            prefill_token_s=2 * model.parameters / flops,
            attention_token_s=4 * model.num_hidden_layers * model.attention_width / flops,
            decode_step_s=self.decode_step_s + model.parameters * model.bytes_per_value / memory,
            decode_sequence_s=self.decode_sequence_s,
            decode_context_token_s=kv / memory,
            load_token_s=kv / link,
            backup_token_s=kv / link,
            storage_token_s=kv / self.storage_bytes_s,
            chunk_tokens=self.chunk_tokens,
        )


class Profile(_Record):
    """Times of one model on one machine, in seconds.

    Attributes:
        prefill_step_s: fixed time of a prefill batch.
        prefill_token_s: time per prompt token, attention apart.
        attention_token_s: time per prompt token and earlier token.
        decode_step_s: fixed time of a decode step.
        decode_sequence_s: time each running request adds.
        decode_context_token_s: time each token of their contexts adds.
        load_token_s: host to device, per token.
        backup_token_s: device to host, per token.
        storage_token_s: storage to host and back, per token.
        chunk_tokens: chunked prefill size.
        max_running: requests that run at a time.
        reserve_tokens: what admission keeps free for every running request to generate.
    """

    name: str
    notes: str = ""
    prefill_step_s: Seconds
    prefill_token_s: Positive
    attention_token_s: Seconds
    decode_step_s: Seconds
    decode_sequence_s: Seconds = 0.0
    decode_context_token_s: Seconds = 0.0
    load_token_s: Positive
    backup_token_s: Positive
    storage_token_s: Positive
    chunk_tokens: int = Field(default=8192, ge=1)
    max_running: int = Field(default=256, ge=1)
    reserve_tokens: int = Field(default=512, ge=0)

    @property
    def costs(self) -> ServingCosts:
        """The part eviction and admission depend on."""
        return ServingCosts(
            prefill_token_s=self.prefill_token_s,
            attention_token_s=self.attention_token_s,
            load_token_s=self.load_token_s,
            storage_token_s=self.storage_token_s,
            prefill_step_s=self.prefill_step_s,
            decode_step_s=self.decode_step_s,
            decode_sequence_s=self.decode_sequence_s,
            decode_context_token_s=self.decode_context_token_s,
        )

    def compute_s(self, start: int, end: int) -> float:
        """Seconds to compute tokens ``start`` to ``end`` of a prompt, the fixed time of a batch apart."""
        return (end - start) * (self.prefill_token_s + self.attention_token_s * (start + end) / 2)

    def decode_s(self, sequences: int, context_tokens: float) -> float:
        """Seconds of one decode step."""
        return self.decode_step_s + self.decode_sequence_s * sequences + self.decode_context_token_s * context_tokens


def load_profile(name: str, model: Path | None = None) -> Profile:
    """Find a profile: the name of one that comes with kvflow, or a JSON file.

    A file may hold a :class:`Profile` (measured times) or a :class:`Machine`; the latter is combined with a model.

    Args:
        name: ``h200``, ``a100``, ``cpu``, or a path.
        model: ``config.json`` of the model; without it the geometry is Llama-3.1-8B's.

    Raises:
        ConfigError: there is no such profile, the file is not one, or its times do not depend on a model.
    """
    data = _load(_find(name))
    try:
        if "flops" not in data:
            if model is not None:
                raise ConfigError(
                    f"profile {name} has measured times, of the model it was measured with: leave --model out"
                )
            return Profile.model_validate(data)
        return Machine.model_validate(data).profile(Model.read(model) if model else Model())
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"profile {name}: {where}: {first['msg']}") from None


def profile_names() -> list[str]:
    """Profiles that come with kvflow."""
    folder = resources.files("kvflow.sim") / "profiles"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".json"))


def _find(name: str) -> Path:
    if name in profile_names():
        return Path(str(resources.files("kvflow.sim") / "profiles" / f"{name}.json"))
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"profile {name!r} is neither a file nor one of {', '.join(profile_names())}")
    return path


def _load(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return data
