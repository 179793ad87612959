"""The real server on the CPU engine: host tier, throttled and asynchronous copies, TP 2."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvflow.errors import ServerUnavailableError
from kvflow.patches.cpu.launch import HOST, ServerProcess, free_port, launch_server
from kvflow.patches.cpu.model import ModelSpec, build_model
from tests import forking
from tests.plugins import write_plugin

pytestmark = [pytest.mark.server, pytest.mark.slow]

PAGE = 16
BYTES_PER_S = 8e6
PROMPT_TOKENS = 94 * PAGE
LOAD_S = PROMPT_TOKENS * ModelSpec().kv_bytes_per_token / BYTES_PER_S
HOST_TIER = ("--enable-hierarchical-cache", "--page-size", str(PAGE), "--max-total-tokens", "4096")
HOST_TIER += ("--hicache-ratio", "4")

# A plugin of the test: loads a prompt back without a request, when told so by a file, and reports by files.
LOADER = """
import array, inspect, json, os, pathlib, time

folder = pathlib.Path(os.environ["LOADER_FOLDER"])
started = []

def register():
    if not any(frame.function == "run_scheduler_process" for frame in inspect.stack(context=0)):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler._process_hicache_events", step, HookType.AFTER)

def report(name, value):
    (folder / "part").write_text(json.dumps(value))
    (folder / "part").replace(folder / name)

def step(_result, scheduler, *arguments, **options):
    cache = scheduler.tree_cache
    if started and not cache.ongoing_load_back:
        report("loaded", {"began_s": started.pop(), "ended_s": time.monotonic()})
    if (folder / "load").exists():
        load(cache, json.loads((folder / "load").read_text()))
        (folder / "load").unlink()
    if (folder / "ask").exists():
        (folder / "ask").unlink()
        from dataclasses import asdict
        from kvflow.patches.cpu.streams import link_statistics
        report("statistics", asdict(link_statistics()) | {"backups": len(cache.ongoing_write_through)})

def load(cache, tokens):
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    match = cache.match_prefix(MatchPrefixParams(key=RadixKey(array.array("q", tokens), None)))
    assert match.host_hit_length > 0 and cache.load_back(match.best_match_node)
    started.append(time.monotonic())
    cache.ready_to_load_host_cache()
"""


class Client:
    """Greedy generation over HTTP."""

    def __init__(self, server: ServerProcess) -> None:
        self.http = httpx.Client(base_url=server.url, timeout=120, trust_env=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        self.http.close()

    def ask(self, prompt: str, new_tokens: int = 8) -> tuple[list[int], dict[str, int], float]:
        """Return the answer, where the cached part of the prompt was, and the seconds it took."""
        began_s = time.monotonic()
        reply = self.http.post("/generate", json=self._body(prompt, new_tokens)).raise_for_status().json()
        took_s = time.monotonic() - began_s
        return reply["output_ids"], reply["meta_info"]["cached_tokens_details"] or {"device": 0, "host": 0}, took_s

    def stream(self, prompt: str, new_tokens: int, arrivals_s: list[float]) -> None:
        """Generate and note when each piece arrives."""
        body = self._body(prompt, new_tokens) | {"stream": True}
        with self.http.stream("POST", "/generate", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    arrivals_s.append(time.monotonic())

    @staticmethod
    def _body(prompt: str, new_tokens: int) -> dict[str, Any]:
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        return {"text": prompt, "sampling_params": sampling}


class Loader:
    """The other end of the plugin's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def statistics(self) -> dict[str, Any]:
        (self.folder / "ask").touch()
        return self._take("statistics")

    def settle(self) -> None:
        """Wait until no backup runs: its node cannot be evicted until then, and a load may have to wait for that."""
        deadline_s = time.monotonic() + 60
        while self.statistics()["backups"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def start(self, prompt: str) -> None:
        (self.folder / "part-load").write_text(json.dumps(list(prompt.encode())))
        (self.folder / "part-load").replace(self.folder / "load")

    def finished(self) -> dict[str, float]:
        return self._take("loaded")

    def _take(self, name: str) -> Any:
        deadline_s = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline_s, f"the plugin wrote no {name}"
            time.sleep(0.005)
        content = json.loads((self.folder / name).read_text())
        (self.folder / name).unlink()
        return content


def prompt(number: int) -> str:
    """A prompt of `PROMPT_TOKENS` tokens that shares nothing with those of other numbers."""
    letters = random.Random(number)
    return f"{number:04d} " + "".join(letters.choice("abcdefgh .,\n") for _ in range(PROMPT_TOKENS - 5))


def demote(client: Client, *, first: int) -> None:
    """Fill the device with other prompts, so that everything before is on the host only."""
    for number in range(first, first + 4):
        client.ask(prompt(number))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("server") / "model")


@pytest.fixture(scope="module")
def throttled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Loader]]:
    """A server whose link moves 8 MB/s each way, with the loader plugin."""
    folder = tmp_path_factory.mktemp("throttled")
    write_plugin(folder, "kvflow_test_loader", LOADER)
    variables = {"KVFLOW_CPU_LINK_BYTES_PER_S": str(BYTES_PER_S), "LOADER_FOLDER": str(folder)}
    started = launch_server(
        model,
        log_path=folder / "log",
        extra_args=HOST_TIER,
        env=variables,
        python_path=[folder],
        spawn=forking.spawn,
    )
    with started as server, Client(server) as client:
        yield client, Loader(folder)


def test_a_load_back_gives_the_same_tokens_and_stalls_for_bytes_over_bandwidth(
    throttled: tuple[Client, Loader],
) -> None:
    client, loader = throttled
    fresh, _, _ = client.ask(prompt(0))
    demote(client, first=10)
    loader.settle()
    before = loader.statistics()["host_to_device"]
    loaded, where, load_s = client.ask(prompt(0))
    after = loader.statistics()["host_to_device"]
    assert where == {"device": 0, "host": PROMPT_TOKENS - PAGE}
    assert loaded == fresh
    again, where, hit_s = client.ask(prompt(0))
    assert where["host"] == 0
    assert again == fresh
    copied_bytes = after["copied_bytes"] - before["copied_bytes"]
    assert copied_bytes == where["device"] // PAGE * PAGE * ModelSpec().kv_bytes_per_token
    expected_s = copied_bytes / BYTES_PER_S
    assert after["stalled_s"] - before["stalled_s"] == pytest.approx(expected_s, rel=0.3)
    assert 0.7 * expected_s < load_s - hit_s < expected_s + 1.5


def test_a_background_load_overlaps_with_the_decode_of_another_request(throttled: tuple[Client, Loader]) -> None:
    client, loader = throttled
    fresh, _, _ = client.ask(prompt(1))
    demote(client, first=20)
    loader.settle()
    before = loader.statistics()["host_to_device"]
    arrivals_s: list[float] = []
    decode = threading.Thread(target=client.stream, args=("another", 400, arrivals_s))
    decode.start()
    while len(arrivals_s) < 20:
        assert decode.is_alive()
        time.sleep(0.01)
    loader.start(prompt(1))
    window = loader.finished()
    after = loader.statistics()["host_to_device"]
    decode.join()
    assert window["ended_s"] - window["began_s"] > 0.8 * LOAD_S
    during = [at_s for at_s in arrivals_s if window["began_s"] < at_s < window["ended_s"]]
    assert len(during) >= 3, "decode stood still while the copy ran"
    assert after["stalled_s"] - before["stalled_s"] < 0.1 * LOAD_S
    loaded, where, _ = client.ask(prompt(1))
    assert where == {"device": PROMPT_TOKENS - PAGE, "host": 0}
    assert loaded == fresh


def test_a_flush_is_refused_while_copies_are_in_flight_and_clean_afterwards(
    throttled: tuple[Client, Loader],
) -> None:
    client, _ = throttled
    fresh, _, _ = client.ask(prompt(2), new_tokens=1)  # its backup takes most of a second
    assert client.http.post("/flush_cache").status_code == httpx.codes.BAD_REQUEST
    deadline_s = time.monotonic() + 20
    while client.http.post("/flush_cache").status_code != httpx.codes.OK:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    again, where, _ = client.ask(prompt(2), new_tokens=1)
    assert where == {"device": 0, "host": 0}
    assert again == fresh


@pytest.mark.beside
def test_a_server_whose_port_is_taken_meanwhile_starts_on_another(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, free_port()))
        taken.listen()
        ports = [taken.getsockname()[1], free_port()]
        monkeypatch.setattr("kvflow.patches.cpu.launch.free_port", iter(ports).__next__)
        with launch_server(model, log_path=tmp_path / "log", spawn=forking.spawn) as server:
            assert server.url == f"http://{HOST}:{ports[1]}"
            assert httpx.get(f"{server.url}/get_model_info", trust_env=False).status_code == httpx.codes.OK


@pytest.mark.beside
def test_a_server_that_cannot_start_says_why(model: Path, tmp_path: Path) -> None:
    flags = ["--kv-cache-dtype", "fp8_e4m3"]
    with (
        pytest.raises(ServerUnavailableError, match="--kv-cache-dtype fp8_e4m3"),
        launch_server(model, log_path=tmp_path / "log", extra_args=flags, spawn=forking.spawn),
    ):
        pytest.fail("it started")
