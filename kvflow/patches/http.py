"""kvflow's routes on SGLang's own HTTP server; they obey its API keys like every other route."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from sglang.srt.entrypoints import http_server
from sglang.srt.utils.auth import AuthLevel, auth_level

import kvflow
from kvflow.errors import GraphError, HintDecodeError, KVFlowError, ServerUnavailableError
from kvflow.graph import to_dict, to_dot, to_mermaid
from kvflow.hints import VERBS
from kvflow.hints.models import FACT_MODELS
from kvflow.patches import bodies, malformed, switch, versions
from kvflow.patches.front import Front
from kvflow.patches.guard import degraded
from kvflow.patches.messages import KvflowAnswer
from kvflow.patches.replicas import add_up
from kvflow.patches.seams import Role

PREFIX = "/kvflow/v1"
router = APIRouter(prefix=PREFIX)


def install(server_args: Any, tokenizer_manager: Any, *args: Any, **kwargs: Any) -> None:
    """Add the routes (hook before ``_setup_and_run_http_server``).

    One by one: SGLang looks among the app's own routes for which key one wants.
    """
    if any(getattr(route, "path", "") == f"{PREFIX}/status" for route in http_server.app.routes):
        return
    for route in router.routes:
        assert isinstance(route, APIRoute)
        http_server.app.add_api_route(route.path, route.endpoint, methods=[*(route.methods or ())])


@router.get("/status")
async def status() -> Any:
    """What runs, with which settings, and which seams hold in which process."""
    front = _front()
    try:
        answers = await front.questions.ask("status")
    except ServerUnavailableError as error:
        return _problem(503, error)
    seams = [state.as_dict() | {"process": "http"} for state in switch.books[Role.HTTP].states()]
    seams += [seam | {"process": "scheduler"} for seam in answers[0].data.get("seams", ())]
    return {
        "version": kvflow.__version__,
        "sglang": str(versions.installed()),
        "replicas": [{k: v for k, v in a.data.items() if k != "seams"} for a in answers],
        "seams": seams,
        "seams_hold": all(seam["holds"] for seam in seams),
        "degraded": dict(sum((Counter(answer.data.get("degraded")) for answer in answers), Counter(degraded))),
        "actions": [*sorted(FACT_MODELS), *VERBS],
        "settings": front.settings.model_dump(),
    }


@router.get("/stats")
async def stats(reset: bool = False) -> Any:
    """Counters of every replica and their sum; ``reset=true`` sets them to zero after reading."""
    front = _front()
    try:
        answers = await front.questions.ask("stats", reset=reset)
    except ServerUnavailableError as error:
        return _problem(503, error)
    failed = _failed(answers)
    if failed:
        return failed
    replicas = [answer.data for answer in answers]
    outcomes: dict[str, dict[str, int]] = {}
    for (action_type, state), count in sorted(front.plane.outcome_counts.items()):
        outcomes.setdefault(action_type, {})[state] = count
    return {
        "total": add_up(replicas),
        "replicas": replicas,
        "hints": {"outcomes": outcomes, "malformed": malformed.count},
        "waits": {"queue_s": front.plane.forecaster.queue_s, "reload_s": front.plane.forecaster.reload_s},
        "live_workflows": len(front.plane),
    }


@router.get("/cache")
async def cache() -> Any:
    """Cached tokens by tier, order class and agent, per replica; of a large cache up to two seconds old (``age_s``)."""
    return await _relay("residency", now_s=_front().now_s)


@router.get("/explain")
async def explain(workflow_id: str | None = None, limit: int = 100) -> Any:
    """Why contexts were evicted, loaded and held back lately, the oldest first, and who waited for loads how long.

    Of one workflow or of all.
    """
    return await _relay("explain", workflow_id=workflow_id, limit=max(0, limit))


@router.get("/workflows")
async def workflows(limit: int = 100) -> Any:
    """The live workflows, the one that was heard of last first, and how many there are."""
    plane = _front().plane
    return {"workflows": plane.view(max(0, limit)), "live_workflows": len(plane)}


@router.put("/policy")
@auth_level(AuthLevel.ADMIN_OPTIONAL)
async def policy(request: Request) -> Any:
    """Switch the eviction policy at run time: ``{"policy": "lru"}``."""
    body = await _json(request)
    if isinstance(body, JSONResponse):
        return body
    if not isinstance(body, Mapping) or not isinstance(body.get("policy"), str):
        return _problem(400, 'send {"policy": NAME}')
    return await _relay("set_policy", policy=body["policy"])


@router.post("/events")
@router.post("/hints")
async def hints(request: Request) -> Any:
    """Take a ``kv_hints`` envelope of facts and commands that come without a request."""
    body = await _json(request)
    if isinstance(body, JSONResponse):
        return body
    try:
        outcomes = await _front().hints(body)
    except HintDecodeError as error:
        return _problem(400, error)
    return {"outcomes": [asdict(outcome) for outcome in outcomes]}


@router.get("/graphs")
async def graphs() -> Any:
    """Workflow types of which something is known."""
    return {"types": _front().plane.graphs.types()}


@router.put("/graphs/{workflow_type:path}")
async def declare(workflow_type: str, request: Request) -> Any:
    """Declare the agent step graph of a workflow type."""
    body = await _json(request)
    if isinstance(body, JSONResponse):
        return body
    try:
        graph = _front().plane.graphs.declare(workflow_type, body)
    except GraphError as error:
        return _problem(400, error)
    return {"workflow_type": workflow_type, "agents": list(graph.agents)}


@router.get("/graphs/{workflow_type:path}")
async def graph(workflow_type: str, format: str = "json") -> Any:
    """The graph of a workflow type, declared or learned, as ``json``, ``mermaid`` or ``dot``."""
    known = _front().plane.graphs.find(workflow_type)
    if known is None:
        return _problem(404, f"nothing is known of workflow type {workflow_type!r} yet")
    if format == "mermaid":
        return PlainTextResponse(to_mermaid(known.graph))
    if format == "dot":
        return PlainTextResponse(to_dot(known.graph))
    return {"declared": known.declared, "graph": to_dict(known.graph)}


def _front() -> Front:
    return Front.of(http_server.get_global_state().tokenizer_manager)


async def _relay(op: str, **arguments: Any) -> Any:
    try:
        answers = await _front().questions.ask(op, **arguments)
    except ServerUnavailableError as error:
        return _problem(503, error)
    return _failed(answers) or {"replicas": [answer.data for answer in answers]}


def _failed(answers: list[KvflowAnswer]) -> JSONResponse | None:
    errors = sorted({answer.error for answer in answers if answer.error})
    return _problem(400, "; ".join(errors)) if errors else None


async def _json(request: Request) -> Any:
    """A request's body; None if it is no JSON, and what to answer if it is too long to be taken."""
    body = await bodies.read(request)
    if body is None:
        return _problem(413, f"the body is longer than {bodies.MAX_BODY_BYTES} bytes, which is more than is read")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _problem(code: int, error: KVFlowError | str) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error), "code": code}}, status_code=code)
