"""What ``kvflow replay`` has been asked for, as plans; what cannot be done or would have no effect is refused."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kvflow import config
from kvflow.errors import ConfigError, require_installed
from kvflow.patches.flags import VARIABLES
from kvflow.patches.orders import require_servable
from kvflow.replay.arms import Arm, flag_of, flag_words
from kvflow.replay.chat import chat_contents
from kvflow.replay.engines import HIERARCHICAL, Sizes, cpu_engine, flag_value, gpu_engine, user_engine
from kvflow.replay.live import live_tokens, longest_request
from kvflow.replay.run import Plan
from kvflow.replay.server import Engine
from kvflow.sim.workload import Workload, parse_size

DEVICE_SIZE, HOST_SIZE = "33%", "67%"
LINK_BYTES_S = 4.9e7
"""Of the CPU engine: loading 2,048 tokens takes it as long as decoding 32, KVFlow's ratio."""
PAGE_TOKENS = 16
LEAST_DEVICE_TOKENS = 1024
"""SGLang wants room for more than one short request."""
_SPARE_TOKENS = 8
"""Of a context; SGLang accepts nothing that fills it to the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Options about servers and prompts; None where the command does not say."""

    launch: str | None
    profile: str | None
    flags: str
    device_tokens: str | None
    host_tokens: str | None
    link: float | None
    page_tokens: int | None
    prompts: str
    tokenizer: str | None
    folder: Path

    @property
    def launched_profile(self) -> str:
        """Whose servers are launched where ``--launch`` does not say how."""
        return self.profile or "cpu"


def planned(plan: Plan, asked: Asked, workload: Workload, loads: Sequence[int | None]) -> list[Plan]:
    """Make a plan for every load.

    Args:
        plan: what they have in common.
        asked: of the servers.
        workload: what is drawn from.
        loads: programs at once, which are no more than there are; None for all.

    Raises:
        ConfigError: it cannot be done, or an option would have no effect.
    """
    found = all(arm.url for arm in plan.arms)
    _check_options(asked, found)
    plans, count = [], len(workload.drawn(plan.seed, plan.load.programs))
    for at_once in dict.fromkeys(None if asked_for is None else min(asked_for, count) for asked_for in loads):
        each = replace(plan, load=replace(plan.load, at_once=at_once))
        sizes, engine = None, None
        if not found:
            sizes = _sizes(each, workload, asked)
            engine = _engine(asked, sizes)
            _check_host_tier(plan.arms, engine)
            _check_settings(plan.arms, engine)
            _check_context(each, workload, engine)
        plans.append(replace(each, engine=engine, chat=_chat(asked, engine), notes=_notes(each, sizes, workload)))
    return plans


def token_range(text: str) -> tuple[int, int]:
    """Read ``--token-ids``: the smallest, and the one after the largest."""
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(high) - int(low) > 1):
        raise ConfigError(f"--token-ids is {text!r}: give the smallest and the one after the largest, e.g. 10:250")
    return int(low), int(high)


def _check_options(asked: Asked, found: bool) -> None:
    given = {"--launch": asked.launch, "--profile": asked.profile, "--flags": asked.flags or None}
    given |= {"--device-tokens": asked.device_tokens, "--host-tokens": asked.host_tokens}
    idle = [option for option, value in given.items() if value is not None]
    if found and idle:
        raise ConfigError(f"{', '.join(idle)}: no server is launched, all arms have a URL")
    if asked.link is not None and (found or asked.launch is not None or asked.launched_profile != "cpu"):
        raise ConfigError("--link is of the CPU engine's pretended link: leave it out, or use --profile cpu")
    if asked.launch is not None and asked.profile is not None:
        raise ConfigError("--profile and --launch both say what is launched: leave one of them out")
    if asked.launch is not None and asked.flags:
        raise ConfigError("--flags are of the profiles' servers: give all flags in --launch")
    for option, flags in (("--launch", asked.launch or ""), ("--flags", asked.flags)):
        if "--enable-kvflow" in flag_words(flags, option):
            raise ConfigError(
                f"{option} has --enable-kvflow, and would have every arm run kvflow: leave it to the arms, "
                "such as kvflow or mine=@kvflow"
            )
    if asked.launch is not None and asked.host_tokens is not None and asked.device_tokens is None:
        raise ConfigError(
            "--host-tokens needs --device-tokens: SGLang is told the host tier as a multiple of the device tier"
        )


def _sizes(plan: Plan, workload: Workload, asked: Asked) -> Sizes:
    device, host, page = asked.device_tokens, asked.host_tokens, asked.page_tokens
    if asked.launch is None:
        device, host, page = device or DEVICE_SIZE, host or HOST_SIZE, page or PAGE_TOKENS
    if device is None:
        return Sizes(device_tokens=None, host_tokens=None, page_tokens=page)
    multiple = page or _launched_page(asked.launch or "")
    live = live_tokens(plan.load.drawn(workload, plan.seed), plan.load.at_once)
    longest = longest_request(replace(plan.load, programs=None).drawn(workload, plan.seed))
    # A request that does not fit alone would be refused; one that fits barely would wait for all others.
    tokens = max(parse_size(device).resolve(live), longest + longest // 4 + 2 * multiple, LEAST_DEVICE_TOKENS)
    pretends = asked.launch is None and asked.launched_profile == "cpu"
    return Sizes(
        device_tokens=-(-tokens // multiple) * multiple,
        host_tokens=None if host is None else parse_size(host).resolve(live),
        page_tokens=page,
        link_bytes_s=(LINK_BYTES_S if asked.link is None else asked.link) if pretends else 0.0,
    )


def _launched_page(launch: str) -> int:
    value = flag_value(launch, "--page-size") or "1"
    if not value.isdecimal() or not int(value):
        raise ConfigError(f"--launch has --page-size {value}: give the tokens of a page, at least 1")
    return int(value)


def _engine(asked: Asked, sizes: Sizes) -> Engine:
    if asked.launch is not None:
        return user_engine(asked.launch, sizes)
    engines = {"cpu": cpu_engine, "gpu": gpu_engine}
    if asked.launched_profile not in engines:
        raise ConfigError(f"--profile is {asked.launched_profile!r}: give cpu or gpu")
    require_installed("sglang", "sglang", f"launching servers of --profile {asked.launched_profile}")
    return engines[asked.launched_profile](asked.folder, sizes, asked.flags)


def _check_host_tier(arms: Sequence[Arm], engine: Engine) -> None:
    """Without a host tier an arm that leaves it out is like one that does not, whatever they are called."""
    launched = [arm for arm in arms if arm.url is None]
    lacking = next((arm.name for arm in launched if not arm.host), None)
    tier = bool(engine.host_flags) or any(HIERARCHICAL in arm.flags for arm in launched)
    if lacking is not None and not tier and any(arm.host for arm in launched):
        raise ConfigError(
            f"arm {lacking!r} leaves out the host tier, but no other arm has one: "
            f"give --host-tokens, or {HIERARCHICAL} in --launch"
        )


def _check_settings(arms: Sequence[Arm], engine: Engine) -> None:
    """Refuse settings of kvflow with which a server would not start, when its turn has come."""
    for arm in arms:
        if arm.url is not None or not arm.kvflow:
            continue
        flags = engine.flags_of(arm)
        given = {variable: flag_of(flags, flag) for flag, variable in VARIABLES.items()}
        try:
            with _environment(engine.env_of(arm) | {name: value for name, value in given.items() if value}):
                require_servable(config.load().eviction.policy)
        except ConfigError as error:
            raise ConfigError(f"arm {arm.name!r}: {error}") from None


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have variables for the length of a ``with`` block."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _check_context(plan: Plan, workload: Workload, engine: Engine) -> None:
    if engine.context_tokens is None:
        return
    longest = max(longest_request(plan.load.drawn(workload, plan.seed + n)) for n in range(plan.rounds))
    room = engine.context_tokens - _SPARE_TOKENS
    if longest > room:
        scale = plan.load.tokens * room / longest
        digits = 10 ** (2 - math.floor(math.log10(scale)))
        raise ConfigError(
            f"the longest request has {longest:,} tokens, and the model's context {engine.context_tokens:,}: "
            f"give --scale {math.floor(scale * digits) / digits:g} or less"
        )


def _chat(asked: Asked, engine: Engine | None) -> str | None:
    """The model whose chat template is used, if one is."""
    if asked.prompts not in ("ids", "chat"):
        raise ConfigError(f"--prompts is {asked.prompts!r}: give ids or chat")
    if asked.prompts == "ids":
        if asked.tokenizer is not None:
            raise ConfigError("--tokenizer is for --prompts chat: give that, too, or leave it out")
        return None
    model = asked.tokenizer or (engine.model if engine else None)
    if model is None:
        raise ConfigError("--prompts chat needs the model's tokenizer: give its folder or name by --tokenizer")
    if asked.tokenizer is not None or engine is None or engine.recipe is None:
        chat_contents(model)  # a model that is yet to be made has a tokenizer that is known to do
    return model


def _notes(plan: Plan, sizes: Sizes | None, workload: Workload) -> dict[str, object]:
    work = plan.load.drawn(workload, plan.seed)
    settings: dict[str, object] = {} if sizes is None else asdict(sizes)
    return {name: value for name, value in settings.items() if value is not None} | {
        "live_tokens": round(live_tokens(work, plan.load.at_once)),
        "calls": sum(len(program.calls) for program in work),
        "programs": len(work),
    }
