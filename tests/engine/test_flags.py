"""SGLang's own flags with which kvflow would silently not work, as SGLang reads them."""

from __future__ import annotations

import argparse

import pytest
from sglang.srt.server_args import ServerArgs

from kvflow.errors import UnsupportedEngineError
from kvflow.patches.flags import refuse_unsupported
from kvflow.replay.arms import PRESETS, Arm

pytestmark = [pytest.mark.engine, pytest.mark.beside]

REFUSED = [
    (("--disable-radix-cache",), "--disable-radix-cache"),
    (("--radix-cache-backend", "mine"), "--radix-cache-backend"),
    (("--tokenizer-worker-num", "2"), "tokenizer-worker-num"),
    (("--smg-grpc-mode",), "gRPC"),
    (("--use-ray",), "--use-ray"),
    (("--enable-dp-attention",), "--enable-dp-attention"),
    (("--attn-dp-size", "2"), "--attn-dp-size"),
    (("--dwdp-size", "2"), "--dwdp-size"),
    (("--enable-prefill-cp", "--dp-size", "2"), "--enable-prefill-cp with --dp-size"),
    (("--pp-size", "2"), "--pp-size"),
    (("--hicache-host-memory-mode", "buffer_only"), "buffer_only"),
    (("--enable-unified-cache-external-linker",), "external cache linker"),
    (("--enable-lmcache",), "--enable-lmcache"),
    (("--enable-flexkv",), "--enable-flexkv"),
    (("--disaggregation-mode", "prefill"), "disaggregation"),
]


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_what_kvflow_cannot_serve_is_refused(
    parser: argparse.ArgumentParser, flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UnsupportedEngineError, match=message):
        refuse_unsupported(parser.parse_args(["--model-path", "m", *flags]))


def test_the_usual_flags_are_served(parser: argparse.ArgumentParser) -> None:
    flags = ["--enable-hierarchical-cache", "--tp-size", "2", "--dp-size", "2", "--schedule-policy", "lpm"]
    refuse_unsupported(parser.parse_args(["--model-path", "m", *flags]))


@pytest.mark.parametrize("arm", [arm for arm in PRESETS.values() if not arm.kvflow], ids=lambda arm: arm.name)
def test_what_arms_of_sglangs_own_ask_for_is_understood(parser: argparse.ArgumentParser, arm: Arm) -> None:
    common = ["--model-path", "m", "--enable-hierarchical-cache"]
    plain, parsed = parser.parse_args(common), parser.parse_args([*common, *arm.flags])
    changed = [name for name, value in vars(parsed).items() if value != getattr(plain, name)]
    assert len(changed) == sum(flag.startswith("--") for flag in arm.flags)
    refuse_unsupported(parsed)
