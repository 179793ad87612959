"""What kvflow costs where it can gain nothing: recorded sessions with room for everything, call by call in turns.

Every arm has a server, and all play the same session at the same time, but only one call is under way at any time: a
call on one server is followed by the same call on the next, after a moment in which the first one ends what it does
besides. What the machine does meanwhile hits all of them, so that differences of a percent show. Servers start anew
for every block, since two that are the same may differ for as long as they run. The time of a session is what its
calls took; tools are left out, which makes every loss look larger.

Usage: python bench/bench_calm.py TRACE [--arms lru again=@lru kvflow] [--blocks 4] [--sessions 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serving import require_whole

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.replay.arms import Arm, parse_arms
from kvflow.replay.connection import Answer, Connection
from kvflow.replay.contents import Contents
from kvflow.replay.engines import Sizes, cpu_engine
from kvflow.replay.metrics import difference, measures, values
from kvflow.replay.player import Player
from kvflow.replay.preparing import prepare
from kvflow.replay.record import CallRecord, Round
from kvflow.replay.server import Running, serving
from kvflow.replay.watching import watched
from kvflow.replay.work import Load, Pace
from kvflow.sim.workload import read_workload
from kvflow.trace import Program

ARMS = ("lru", "again=@lru", "python=@lru SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python", "kvflow", "kvflow-infer")
PAGE_TOKENS = 16
SETTLE_S = 0.05
"""After an answer, what a server tells its scheduler of it would take time from the call of the next one."""
MEASURES = (
    "calls",
    "latency_mean_s",
    "latency_p50_s",
    "ttft_mean_s",
    "inter_token_mean_s",
    "recomputed_tokens",
    "server_cpu_s",
)
SIZES = Sizes(device_tokens=32_768, host_tokens=65_536, page_tokens=PAGE_TOKENS)


class TurnConnection(Connection):
    """Asks when it is its turn, and keeps it for a moment after the answer; what was asked counts from its turn on."""

    def __init__(self, turn: asyncio.Lock, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._turn = turn

    async def ask(
        self,
        prompt: Sequence[int],
        answer: array[int],
        hints: list[dict[str, Any]],
        seen: CallRecord,
        computed: Callable[[], None] = lambda: None,
    ) -> Answer | None:
        """Wait for the turn, and ask."""
        async with self._turn:
            seen.asked_s = self.now_s()
            told = await super().ask(prompt, answer, hints, seen, computed)
            await asyncio.sleep(SETTLE_S)
            return told


async def play(servers: Sequence[Running], sessions: Sequence[Program], block: int) -> dict[str, Round]:
    """Play sessions one after another, on all servers in turns; returns what each server did."""
    turn, began_s = asyncio.Lock(), time.perf_counter()
    rounds = {server.arm.name: Round(arm=server.arm.name, index=block, seed=block) for server in servers}
    async with contextlib.AsyncExitStack() as stack:
        players: list[Player] = []
        for server in servers:
            client = await stack.enter_async_context(server.client(600.0))
            await prepare(server, client)
            seen = rounds[server.arm.name]
            connection = TurnConnection(turn, client, server.arm, free=False, began_s=began_s)
            await stack.enter_async_context(watched(server, client, seen))
            players.append(Player(connection, seen, Contents(), Pace(max_gap_s=0.0), PAGE_TOKENS))
        first_s = players[0].connection.now_s()
        for number, session in enumerate(sessions):
            shift = number % len(players)
            order = players[shift:] + players[:shift]
            await asyncio.gather(*(one.play(session, f"{block}.{number}", one.connection.now_s()) for one in order))
            for one in order:
                async with one.connection.telling():
                    pass  # what was not told with a request is told between sessions
                one.seen.span_s = one.connection.now_s() - first_s
    return rounds


def serve_and_play(arms: Sequence[Arm], sessions: Sequence[Program], block: int, folder: Path) -> dict[str, Round]:
    """Start a server for every arm, and play."""
    engine = cpu_engine(folder, SIZES)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(arm, engine, folder)) for arm in arms]
        rounds = asyncio.run(play(servers, sessions, block))
        for server in servers:
            require_whole(server.url)
        return rounds


def compared(rounds: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Every arm in numbers, and against the first one."""
    base, *_ = rounds.values()
    result: dict[str, Any] = {}
    for name, own in rounds.items():
        found = measures(own)
        result[name] = {key: found[key] for key in MEASURES} | {
            "errors": sum(bool(call.error) for each in own for call in each.calls)
        }
        for paired in ("latency_s", "ttft_s"):
            against = difference(values(base, paired), values(own, paired))
            if against is not None and own is not base:
                result[name][f"{paired}_against_first"] = asdict(against) | {"tells": against.tells}
    return result


def shown(result: Mapping[str, Any]) -> Iterator[str]:
    """A line per arm."""
    for name, arm in result.items():
        against = arm.get("latency_s_against_first")
        told = ""
        if against:
            told = f"{against['ratio']:.3f}x [{against['ratio_low']:.3f}, {against['ratio_high']:.3f}]"
            told += "" if against["tells"] else f" (of {against['pairs']} blocks: hardly more than their range)"
        yield (
            f"{name:14s} call {1e3 * arm['latency_mean_s']:6.1f} ms, first token {1e3 * arm['ttft_mean_s']:5.1f} ms, "
            f"each further {1e3 * arm['inter_token_mean_s']:5.2f} ms, processor {arm['server_cpu_s']:6.1f} s  {told}"
        )


def main() -> None:
    """Read options, play, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="file with recorded sessions")
    parser.add_argument("--arms", nargs="+", default=ARMS, help="as for kvflow replay; the first is compared with")
    parser.add_argument("--blocks", type=int, default=4, help="times that servers are started")
    parser.add_argument("--sessions", type=int, default=4, help="per block")
    parser.add_argument("--scale", type=float, default=0.03, help="factor of contexts and answers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    arms, workload = parse_arms(options.arms), read_workload([options.trace])
    made = circumstances()
    load = Load(programs=options.sessions, tokens=options.scale)
    rounds: dict[str, list[Round]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for block in range(options.blocks):
            shift = block % len(arms)
            played = serve_and_play([*arms[shift:], *arms[:shift]], load.drawn(workload, block), block, Path(folder))
            for arm in arms:
                rounds[arm.name].append(played[arm.name])
            result = compared(rounds)
            print(f"block {block + 1} of {options.blocks}", *shown(result), sep="\n", flush=True)
            settings = {"blocks": block + 1, "sessions": options.sessions, "scale": options.scale}
            document = {"bench": "calm", **made, "settings": settings, "sizes": asdict(SIZES), "arms": result}
            if options.json:
                options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    with ended_by_signals():
        main()
