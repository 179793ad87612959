"""What a server is made ready with, and what of it is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvflow.errors import ServerUnavailableError
from kvflow.patches.cpu import publish
from kvflow.patches.cpu.environment import server_environment
from kvflow.patches.cpu.link import Direction, DirectionStatistics, LinkStatistics
from kvflow.patches.cpu.model import ModelSpec
from kvflow.replay import server
from kvflow.replay.arms import Arm, parse_arm
from kvflow.replay.engines import Sizes, cpu_engine, gpu_engine
from kvflow.replay.preparing import Ready, prepare
from kvflow.replay.server import Engine, Running, serving

STORING = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file")
STORAGE = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"


class Server:
    """SGLang, as far as a replay asks it before a round."""

    def __init__(self, **info: Any) -> None:
        self.asked: list[str] = []
        self.pages: dict[str, httpx.Response] = {}
        self._info = info

    def respond(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        if path in self.pages:
            return self.pages[path]
        if path == "/server_info":
            return httpx.Response(200, json=self._info)
        if path == "/generate":
            return httpx.Response(200, json={"output_ids": [9] * 4, "meta_info": {"cached_tokens": 0}})
        return httpx.Response(404 if path.startswith("/kvflow") else 200)

    def prepared(self, *flags: str, arm: Arm | None = None, process: Any = None) -> Ready:
        """Make it ready for an arm whose server was launched with these flags."""
        running = Running(arm=arm or Arm(name="a"), url="http://here", flags=flags, process=process)

        async def prepared() -> Ready:
            transport = httpx.MockTransport(self.respond)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await prepare(running, client)

        return asyncio.run(prepared())

    @property
    def cleared(self) -> int:
        return self.asked.count("/hicache/storage-backend/clear")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How the last server was launched."""
    seen: dict[str, Any] = {}

    @contextlib.contextmanager
    def launch(model: str, **how: Any) -> Iterator[Any]:
        config = Path(model) / "config.json"
        seen.update(how, made_ns=config.stat().st_mtime_ns if config.exists() else None)
        yield type("Process", (), {"url": "http://here"})()

    monkeypatch.setattr(server, "launch_server", launch)
    return seen


def test_storage_is_emptied_wherever_there_is_any() -> None:
    for info, flags in (({}, STORING), ({"hicache_storage_backend": "file"}, ()), ({"page_size": 16}, STORING[1:])):
        storing = Server(**info)
        storing.prepared(*flags)
        assert storing.cleared == 2, "as often as the cache is flushed"
    for plain in (Server(), Server(hicache_storage_backend=None)):
        plain.prepared("--enable-hierarchical-cache")
        assert plain.cleared == 0


def test_storage_that_cannot_be_emptied_is_told_of() -> None:
    stuck = Server(hicache_storage_backend="file")
    stuck.pages["/hicache/storage-backend/clear"] = httpx.Response(400)
    with pytest.raises(ServerUnavailableError, match="a: its storage tier could not be emptied"):
        stuck.prepared()


@pytest.mark.parametrize(
    ("engine", "arm", "stores"),
    [
        (Engine(model="m", flags=STORING), Arm(name="a"), True),
        (Engine(model="m", host_flags=STORING), Arm(name="a"), True),
        (Engine(model="m", host_flags=STORING), Arm(name="a", host=False), False),
        (Engine(model="m"), parse_arm("a=--hicache-storage-backend=file"), True),
        (Engine(model="m"), Arm(name="a"), False),
    ],
)
def test_every_arm_that_stores_has_a_folder_for_it(
    engine: Engine, arm: Arm, stores: bool, tmp_path: Path, launched: dict[str, Any]
) -> None:
    with serving(arm, engine, tmp_path) as running:
        assert running.flags == engine.flags_of(arm)
    assert launched["env"].get(STORAGE) == (str(tmp_path / "a.storage") if stores else None)


def test_a_server_with_less_memory_than_it_was_asked_to_have_is_refused() -> None:
    small = Server(page_size=16, max_total_num_tokens=4096)
    assert small.prepared("--max-total-tokens", "4100").device_tokens == 4096, "pages come whole"
    assert small.prepared().device_tokens == 4096
    with pytest.raises(ServerUnavailableError, match=r"a: its device tier has 4,096 tokens instead of 8,192.*smaller"):
        small.prepared("--max-total-tokens", "4096", "--max-total-tokens=8192")


@pytest.mark.parametrize("path", ["/server_info", "/generate"])
def test_a_page_in_place_of_an_answer_is_told_of(path: str) -> None:
    front = Server()
    for answer in (httpx.Response(200, text="<html>welcome"), httpx.Response(200, json=["welcome"])):
        front.pages[path] = answer
        with pytest.raises(ServerUnavailableError, match=f"http://here{path} answers something else than SGLang"):
            front.prepared()


@pytest.mark.parametrize(
    ("text", "told"), [("lru", ""), ("kvflow", ""), ("mine=no-hints KVFLOW_ENABLE=1", "1")]
)  # fmt: skip
def test_only_an_arm_itself_switches_kvflow_on(
    text: str, told: str, tmp_path: Path, launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFLOW_ENABLE", "1")
    with serving(parse_arm(text), Engine(model="m"), tmp_path):
        assert (server_environment() | launched["env"])["KVFLOW_ENABLE"] == told


def test_a_baseline_that_runs_kvflow_is_refused() -> None:
    running = Server()
    running.pages["/kvflow/v1/status"] = httpx.Response(200, json={"replicas": [], "degraded": {}})
    running.pages["/kvflow/v1/stats"] = httpx.Response(200, json={"total": {}})
    with pytest.raises(ServerUnavailableError, match="a: its server runs kvflow, which the arm does not have"):
        running.prepared(process=object())
    for flags, arm in (("--enable-kvflow",), Arm(name="a")), ((), Arm(name="a", env=(("KVFLOW_ENABLE", "1"),))):
        assert running.prepared(*flags, arm=arm, process=object()).kvflow
    assert running.prepared().kvflow, "a found server may run it and be told nothing"


def test_the_model_of_a_profile_is_made_before_its_first_server_is_launched(
    launched: dict[str, Any], tmp_path: Path
) -> None:
    sizes = Sizes(device_tokens=1024, host_tokens=0)
    for engine, layers in ((cpu_engine(tmp_path, sizes), ModelSpec().layers), (gpu_engine(tmp_path, sizes), 32)):
        config = Path(engine.model) / "config.json"
        assert not config.exists()
        made: list[int] = []
        for _ in range(2):
            with serving(Arm(name="a"), engine, tmp_path):
                made.append(launched["made_ns"])
        assert json.loads(config.read_text())["num_hidden_layers"] == layers
        assert launched["device"] == engine.device
        assert made[0] == made[1] is not None, "once"


def test_costs_of_the_profile_are_not_for_arms_that_name_their_own_settings(tmp_path: Path) -> None:
    engine = cpu_engine(tmp_path, Sizes(device_tokens=1024, host_tokens=0, link_bytes_s=1e8))
    costs = {name for name in engine.env if name.startswith("KVFLOW_COSTS__")}
    assert costs
    assert costs < engine.env_of(parse_arm("kvflow")).keys()
    for word in ("--kvflow-config own.yaml", "--kvflow-config=own.yaml", "KVFLOW_CONFIG=own.yaml"):
        own = engine.env_of(parse_arm(f"mine=@kvflow {word} KVFLOW_GUARD__ENABLED=false"))
        assert not costs & own.keys()
        assert engine.env.keys() - costs < own.keys()
        assert own["KVFLOW_GUARD__ENABLED"] == "false"


def test_what_went_over_the_links_of_all_ranks_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.link"
    nothing = publish.read_statistics(path)[Direction.HOST_TO_DEVICE]
    assert (nothing.copied_bytes, nothing.stalled_s) == (0, 0)
    for rank in (1, 2):
        one = DirectionStatistics(copied_bytes=100 * rank, copies=rank, busy_s=rank, stalled_s=0.5)
        both = LinkStatistics(host_to_device=one, device_to_host=nothing)
        (tmp_path / f"a.link.{rank}").write_text(json.dumps(asdict(both)))
    (tmp_path / "a.link.3.new").write_text("{")
    (tmp_path / "b.link.3").write_text("another arm's")
    found = publish.read_statistics(path)
    assert found[Direction.HOST_TO_DEVICE] == DirectionStatistics(copied_bytes=300, copies=3, busy_s=3, stalled_s=1)
    assert found[Direction.DEVICE_TO_HOST] == nothing
    publish.forget_statistics(path)
    assert publish.read_statistics(path)[Direction.HOST_TO_DEVICE] == nothing
    assert (tmp_path / "b.link.3").exists()
