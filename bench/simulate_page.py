"""docs/results.md from the JSON of bench_simulate.py."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from kvflow.report.simulation_record import PolicyRecord, SetupRecord
from kvflow.report.simulation_rows import share
from kvflow.report.verdict import Verdict
from kvflow.sim.summary import LEAST_GAP

BASELINE, IDEAL, OURS = "lru", "belady", "cost"
INTRO = """\
# Simulated results

Made by `bench/bench_simulate.py` from `bench/results/simulate.json`; do not edit. What is simulated, and what that can
and cannot show, is said in [simulator.md](simulator.md); which orders are of older commits, in `bench/README.md`.

*Time lost* is what a server spends on context that had been cached before: computing it again, or loading it back from
the host. Tables show the time lost by each policy as a multiple of LRU's; after the dot, the share of the gap between
LRU and Belady that it closes, where there is a gap worth the name. A full host keeps copies of what the device holds,
with every policy (`exclusive` is `never`; a server with one of kvflow's orders may drop them). Policies face the same
programs in the same order, seed by seed; sources with fewer than 32 programs are played more than once, as new
workflows with texts of their own.
**Bold is worse than LRU**, by more than 1 % and by more than the 95 % interval of the paired differences;
≈ marks what differs from LRU by less than either. A dash: LRU loses nothing.
"""


def render(result: Mapping[str, Any]) -> str:
    """The page."""
    sources = {
        name: [SetupRecord.model_validate(setup) for setup in source["setups"]]
        for name, source in sorted(result["sources"].items())
    }
    policies = [name for name in _policies(sources.values()) if name != BASELINE]
    lines = [INTRO, _settings(result), "", "## Overview", "", *_overview(sources, policies), ""]
    lines += ["", *_by_tier(sources, policies), ""]
    if OURS in policies:
        lines += ["", *_losses(sources), ""]
    for name, setups in sources.items():
        lines += _source(name, result["sources"][name], setups, policies)
    return "\n".join(lines).rstrip() + "\n"


def _policies(sources: Iterable[list[SetupRecord]]) -> list[str]:
    return list(dict.fromkeys(policy.policy for setups in sources for setup in setups for policy in setup.policies))


def _settings(result: Mapping[str, Any]) -> str:
    settings, profile, machine = result["settings"], result["profile"], result["machine"]
    programs = f"{settings['limit']} programs" if settings["limit"] else f"about {settings['calls']:,} LLM calls"
    commits = sorted({str(source["git"]["commit"])[:8] for source in result["sources"].values()})
    dirty = any(source["git"]["dirty"] for source in result["sources"].values())
    spread = settings.get("tool_spread")
    told = (
        f"{settings['seeds']} seeds; {programs} a simulation, other programs with every seed. Device and host sizes "
        f"are shares of what the programs that run at a time hold (their number times the longest context of a "
        f"program, on average). Profile {profile['name']} ({profile['notes']}). Commit {', '.join(commits)}"
        f"{' with changes' if dirty else ''}, {result['created'][:10]}, {machine['cpu']}."
        + (f" Tools without a recorded time vary by {spread:g} (`--tool-spread`)." if spread is not None else "")
    )
    return textwrap.fill(told, 120)


def _overview(sources: Mapping[str, list[SetupRecord]], policies: list[str]) -> list[str]:
    """A line per source: geometric means over its servers, and how many are better and worse."""
    lines = [
        "Geometric mean over the servers of a source, and on how many of them the policy is better + and worse −.",
        "",
        f"| source | LRU loses | {' | '.join(policies)} |",
        f"|---|---:|{'---:|' * len(policies)}",
    ]
    for name, setups in sources.items():
        shares = [_lost_share(setup) for setup in setups]
        cells = [_over_servers([setup.policy(policy) for setup in setups]) for policy in policies]
        lines.append(f"| {name} | {share(fmean(shares))} of prefill | {' | '.join(cells)} |")
    every = [setup for setups in sources.values() for setup in setups]
    cells = [_over_servers([setup.policy(policy) for setup in every]) for policy in policies]
    return [*lines, f"| all | | {' | '.join(cells)} |"]


def _by_tier(sources: Mapping[str, list[SetupRecord]], policies: list[str]) -> list[str]:
    """Seconds summed over all devices and loads, with and without a host tier: large losses weigh most."""
    lines = [
        "Seconds lost, summed over devices and loads, as a multiple of LRU's; in the last column the share of the gap "
        f"between LRU and Belady that `{OURS}` closes of that sum, and the mean of its shares on the "
        "servers that have such a gap.",
        "",
        f"| source | host | LRU loses | {' | '.join(policies)} | closed | mean |",
        f"|---|---|---:|{'---:|' * len(policies)}---:|---:|",
    ]
    for name, setups in sources.items():
        for hosted in (False, True):
            chosen = [setup for setup in setups if bool(setup.host_tokens) is hosted]
            lost = {policy: _sum(chosen, policy) for policy in (BASELINE, *policies)}
            lru, ideal, ours = lost[BASELINE], lost.get(IDEAL), lost.get(OURS)
            if not chosen or not lru:
                continue
            cells = [f"{value / lru:.3f}" if (value := lost[policy]) is not None else "–" for policy in policies]
            closed = "–"
            if ideal is not None and ours is not None and 1 - ideal / lru >= LEAST_GAP:
                closed = share((lru - ours) / (lru - ideal))
            host = chosen[0].host_size if hosted else "–"
            cells += [closed, _mean_closed(chosen)]
            lines.append(f"| {name} | {host} | {lru:,.3g} s | {' | '.join(cells)} |")
    return lines


def _mean_closed(setups: list[SetupRecord]) -> str:
    found = [setup.policy(OURS) for setup in setups]
    shares = [one.gap_closed for one in found if one is not None and one.gap_closed is not None]
    return share(fmean(shares)) if shares else "–"


def _sum(setups: list[SetupRecord], policy: str) -> float | None:
    found = [setup.policy(policy) for setup in setups]
    values = [one.mean("lost_s") for one in found if one is not None]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(setups) else None


def _lost_share(setup: SetupRecord) -> float:
    """What LRU loses, as a share of all prefill time."""
    policy = setup.policy(BASELINE)
    prefill_s = policy.mean("prefill_s") if policy else None
    return (policy.mean("lost_s") or 0.0) / prefill_s if policy and prefill_s else 0.0


def _over_servers(found: list[PolicyRecord | None]) -> str:
    known = [policy for policy in found if policy is not None and "lost_s" in policy.relative]
    if not known:
        return "–"
    mean = math.exp(fmean(math.log(max(policy.relative["lost_s"].mean, 1e-6)) for policy in known))
    verdicts = [policy.verdict() for policy in known]
    better, worse = verdicts.count(Verdict.BETTER), verdicts.count(Verdict.WORSE)
    return f"{mean:.2f} ({better}+ {f'**{worse}−**' if worse else '0−'})"


def _losses(sources: Mapping[str, list[SetupRecord]]) -> list[str]:
    """Every server on which our policy is worse than LRU."""
    count = 0
    lines = []
    for name, setups in sources.items():
        for setup in setups:
            policy = setup.policy(OURS)
            count += policy is not None and "lost_s" in policy.relative
            if policy is not None and policy.verdict() is Verdict.WORSE:
                ratio = policy.relative["lost_s"].mean
                lines.append(f"- {name}, {_server(setup)}: {ratio:.2f}, {_amount(policy)} s lost")
    return [f"`{OURS}` is worse than LRU on {len(lines)} of {count} servers{':' if lines else '.'}", "", *lines]


def _server(setup: SetupRecord) -> str:
    host = f", host {setup.host_size}" if setup.host_tokens else ""
    return f"{setup.concurrency} at a time, device {setup.device_size}{host}"


def _source(name: str, source: Mapping[str, Any], setups: list[SetupRecord], policies: list[str]) -> list[str]:
    trace = source["trace"]
    times = source.get("times", 1)
    again = f", drawn from {times} copies of each with texts of their own" if times > 1 else ""
    left_out = f", {source['left_out']} of them left out as too long" if source["left_out"] else ""
    lines = [
        f"## {name}",
        "",
        f"{trace['source']}: {trace['programs']:,} programs{left_out}, {trace['calls']:,} LLM calls, tokens "
        f"{trace['token_counts']}; longest context of a program {source['context_tokens']:,} tokens on average. "
        f"{source['limit']:,} programs a simulation{again}.",
        "",
        f"| at a time | device | host | LRU loses | {' | '.join(policies)} |",
        f"|---:|---:|---:|---:|{'---:|' * len(policies)}",
    ]
    for setup in setups:
        baseline = setup.policy(BASELINE)
        cells = [_cell(setup.policy(policy)) for policy in policies]
        lines.append(
            f"| {setup.concurrency} | {setup.device_size} | {setup.host_size if setup.host_tokens else '–'} "
            f"| {_amount(baseline)} s ({share(_lost_share(setup))}) | {' | '.join(cells)} |"
        )
    return [*lines, "", *_rejected(setups)]


def _rejected(setups: list[SetupRecord]) -> list[str]:
    found = []
    for setup in setups:
        calls = max((policy.mean("rejected") or 0 for policy in setup.policies), default=0)
        if calls:
            found.append(f"{calls:,.0f} calls on {_server(setup)}")
    return [f"Rejected, as longer than the device: {'; '.join(found)}.", ""] if found else []


def _amount(policy: PolicyRecord | None) -> str:
    lost_s = policy.mean("lost_s") if policy else None
    return "–" if lost_s is None else f"{lost_s:,.0f}" if lost_s >= 100 else f"{lost_s:.3g}"


def _cell(policy: PolicyRecord | None) -> str:
    if policy is None or "lost_s" not in policy.relative:
        return "–"
    ratio = f"{policy.relative['lost_s'].mean:.2f}"
    verdict = policy.verdict()
    told = f"**{ratio} worse**" if verdict is Verdict.WORSE else f"≈ {ratio}" if verdict is Verdict.SAME else ratio
    closed = policy.gap_closed
    return told if closed is None or policy.policy == IDEAL else f"{told} · {share(closed)}"
