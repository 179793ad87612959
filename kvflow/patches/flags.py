"""kvflow's flags on SGLang's own launch command."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from kvflow import config
from kvflow.errors import ConfigError, UnsupportedEngineError
from kvflow.patches import plugin, switch, versions
from kvflow.patches.orders import require_servable
from kvflow.patches.seams import Role
from kvflow.policy import ORACLES, POLICIES

logger = logging.getLogger(__name__)

VARIABLES = {
    "--kvflow-config": config.CONFIG_VARIABLE,
    "--kvflow-policy": "KVFLOW_EVICTION__POLICY",
    "--kvflow-admission": "KVFLOW_ADMISSION__MODE",
}
"""What flags with a value stand for, so that all processes of the server read it."""


def declare(result: None, parser: argparse.ArgumentParser) -> None:
    """Add our group of flags (hook after ``ServerArgs.add_cli_args``)."""
    group = parser.add_argument_group("kvflow")
    group.add_argument(
        "--enable-kvflow",
        action="store_true",
        help="Manage the KV cache by the agent step graphs of the programs that use it.",
    )
    group.add_argument(
        "--kvflow-policy",
        metavar="NAME",
        default=None,
        help="Eviction order on the device and host tiers (default: cost): "
        f"{', '.join(name for name in POLICIES if name not in ORACLES)}, or one that another package brings.",
    )
    group.add_argument(
        "--kvflow-admission",
        choices=("workflow", "fcfs"),
        default=None,
        help="Whose requests run: those of the programs whose contexts fit together, where that pays (default: "
        "workflow), or everyone's, in SGLang's own order.",
    )
    group.add_argument(
        "--kvflow-infer",
        action="store_true",
        help="Recognise the workflows of clients that send no hints by what their prompts have in common.",
    )
    group.add_argument("--kvflow-config", metavar="FILE", default=None, help="YAML file with kvflow's settings.")


def read(server_args: Any, cls: type, args: argparse.Namespace) -> Any:
    """Switch kvflow on if asked (hook after ``ServerArgs.from_cli_args``).

    Raises:
        ConfigError: a setting is wrong, or kvflow's flags were given without ``--enable-kvflow``.
        UnsupportedEngineError: this SGLang, or this way of running it, is not supported.
        SeamMissingError: a seam does not hold and ``KVFLOW_STRICT`` is set.
    """
    if not (args.enable_kvflow or switch.enabled()):
        if args.kvflow_policy or args.kvflow_admission or args.kvflow_infer or args.kvflow_config:
            raise ConfigError("kvflow's other flags need --enable-kvflow")
        return server_args
    for flag, variable in VARIABLES.items():
        if value := getattr(args, flag.removeprefix("--").replace("-", "_")):
            os.environ[variable] = value
    if args.kvflow_infer:
        os.environ["KVFLOW_INTAKE__INFER"] = "true"
    if vars_of(server_args)("enable_priority_scheduling") and config.load().admission.mode != "fcfs":
        logger.warning("kvflow: with --enable-priority-scheduling whose requests run is left to SGLang")
        os.environ["KVFLOW_ADMISSION__MODE"] = "fcfs"
    settings = config.load()
    require_servable(settings.eviction.policy)
    versions.require_supported()
    refuse_unsupported(server_args)
    os.environ[switch.ENABLE_VARIABLE] = "1"
    server_args.radix_cache_backend = switch.BACKEND
    plugin.attach(Role.HTTP).require(strict=settings.strict)
    return server_args


def refuse_unsupported(server_args: Any) -> None:
    """Refuse configurations in which kvflow would silently not work.

    Raises:
        UnsupportedEngineError: names the first one found and what to change.
    """
    value = vars_of(server_args)
    refusals = (
        (value("radix_cache_backend") not in (None, switch.BACKEND), "--radix-cache-backend", "leave it out"),
        (value("disable_radix_cache"), "--disable-radix-cache", "kvflow manages that cache: leave it out"),
        (value("tokenizer_worker_num", 1) > 1, "--tokenizer-worker-num > 1", "its workers load no plugins: use 1"),
        (_is_set("SGLANG_RUST_SERVER"), "SGLANG_RUST_SERVER", "it bypasses the Python front end: unset it"),
        (value("smg_grpc_mode") or value("grpc_mode"), "gRPC mode", "it has no HTTP routes: leave it out"),
        (value("use_ray"), "--use-ray", "its actors load no plugins: leave it out"),
        (
            value("enable_dp_attention")
            or value("attn_dp_size", 1) > 1
            or value("dwdp_size", 1) > 1
            or (value("enable_prefill_cp") and value("dp_size", 1) > 1),  # SGLang makes that attn_dp_size later
            "--attn-dp-size, --dwdp-size, --enable-dp-attention or --enable-prefill-cp with --dp-size",
            "attention data parallelism is not supported yet: leave it out",
        ),
        (value("pp_size", 1) > 1, "--pp-size > 1", "pipeline stages would decide at different times: use --tp-size"),
        (
            value("hicache_host_memory_mode", "cache") == "buffer_only",
            "--hicache-host-memory-mode buffer_only",
            "the host tier then holds no tree state: use cache",
        ),
        (value("enable_unified_cache_external_linker"), "an external cache linker", "it replaces the host tier"),
        (value("enable_lmcache"), "--enable-lmcache", "it brings its own cache: choose one"),
        (value("enable_flexkv"), "--enable-flexkv", "it brings its own cache: choose one"),
        (
            value("disaggregation_mode", "null") != "null",
            "prefill/decode disaggregation",
            "not supported yet: serve without it",
        ),
    )
    for refused, found, advice in refusals:
        if refused:
            raise UnsupportedEngineError(found, f"another configuration ({advice})")
    if value("enable_hierarchical_cache") and value("hicache_write_policy", "write_through") != "write_through":
        logger.warning(
            "kvflow: with --hicache-write-policy %s context can be lost before it reaches the host tier, "
            "whatever its claims; write_through keeps it",
            value("hicache_write_policy"),
        )


def vars_of(server_args: Any) -> Any:
    """Reader for fields that not every supported SGLang has."""

    def value(name: str, default: Any = None) -> Any:
        found = getattr(server_args, name, default)
        return default if found is None else found

    return value


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on", "y", "t")
