"""How servers are launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvflow.errors import ConfigError
from kvflow.replay.engines import Sizes, cpu_engine, gpu_engine, user_engine

LEFT = Sizes(device_tokens=None, host_tokens=None, page_tokens=None)


def test_flags_of_the_host_tier_are_only_for_arms_that_have_one() -> None:
    launch = "--model-path m --enable-hierarchical-cache --tp 2 --hicache-ratio 3 --hicache-storage-backend=file"
    engine = user_engine(launch, LEFT)
    assert engine.flags == ("--tp", "2", "--enable-metrics")
    assert engine.host_flags == (
        "--enable-hierarchical-cache",
        "--hicache-ratio",
        "3",
        "--hicache-storage-backend=file",
    )
    assert (engine.model, engine.device, engine.context_tokens) == ("m", "cuda", None)


def test_so_are_those_given_to_a_profile(tmp_path: Path) -> None:
    sizes = Sizes(device_tokens=1024, host_tokens=2048)
    for engine in (cpu_engine, gpu_engine):
        made = engine(tmp_path / engine.__name__, sizes, "--hicache-storage-backend file --log-level info")
        assert made.host_flags[-2:] == ("--hicache-storage-backend", "file")
        assert made.flags[-2:] == ("--log-level", "info")


def test_sizes_are_added_to_what_the_user_says() -> None:
    launch = "--model-path m --device cpu --enable-hierarchical-cache --hicache-write-policy write_back"
    engine = user_engine(launch, Sizes(device_tokens=1000, host_tokens=2000, page_tokens=None))
    assert engine.flags[-2:] == ("--max-total-tokens", "1000")
    assert "--page-size" not in engine.flags
    assert engine.host_flags[-2:] == ("--hicache-write-policy", "write_back"), "the user's word is the last one"
    assert ("--hicache-ratio", "2.0000") in zip(engine.host_flags, engine.host_flags[1:], strict=False)
    none = user_engine(launch, Sizes(device_tokens=1000, host_tokens=0, page_tokens=64))
    assert none.host_flags == ()
    assert "--page-size" in none.flags


@pytest.mark.parametrize(
    ("launch", "sizes"),
    [
        ("--page-size 32", Sizes(device_tokens=None, host_tokens=None, page_tokens=16)),
        ("--max-total-tokens=99", Sizes(device_tokens=1000, host_tokens=None, page_tokens=None)),
        ("--hicache-size 4", Sizes(device_tokens=1000, host_tokens=1000, page_tokens=None)),
    ],
)
def test_what_is_said_twice_is_refused(launch: str, sizes: Sizes) -> None:
    with pytest.raises(ConfigError, match="is given, too"):
        user_engine(f"--model-path m {launch}", sizes)


@pytest.mark.parametrize("flag", ["--api-key sesame", "--api-key=sesame", "--port 30000", "--host 0.0.0.0"])
def test_an_address_or_a_key_is_refused_and_not_repeated(flag: str) -> None:
    with pytest.raises(ConfigError, match="leave it out") as refused:
        user_engine(f"--model-path m {flag}", LEFT)
    assert "sesame" not in str(refused.value)


def test_the_context_is_that_of_the_model_or_of_the_flags(tmp_path: Path) -> None:
    sizes = Sizes(device_tokens=1024, host_tokens=0)
    assert cpu_engine(tmp_path, sizes).context_tokens == 65536
    assert cpu_engine(tmp_path, sizes, "--context-length 4096").context_tokens == 4096
    assert user_engine("--model-path m --context-length 9", LEFT).context_tokens == 9
