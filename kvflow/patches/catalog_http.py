"""The seams of the HTTP process."""

from __future__ import annotations

from kvflow.patches import health
from kvflow.patches.seams import Feature, Kind, Role, Seam

_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
_COMPLETION = "sglang.srt.entrypoints.openai.serving_completions.OpenAIServingCompletion"

HTTP_SEAMS: tuple[Seam, ...] = (
    Seam(
        name="http.routes",
        role=Role.HTTP,
        kind=Kind.BEFORE,
        feature=Feature.HINTS,
        target="sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        parameters=("server_args", "tokenizer_manager"),
        body="kvflow.patches.http:install",
        why="Adds /kvflow/v1 to SGLang's server before its API-key middleware looks at the routes.",
    ),
    Seam(
        name="http.contract",
        role=Role.HTTP,
        kind=Kind.AFTER,
        feature=Feature.HINTS,
        target="sglang.srt.entrypoints.api_contract.generate_contract_error",
        parameters=("body",),
        body="kvflow.patches.intake:generate_contract",
        why="Answers malformed hints on /generate with 400, streaming included.",
    ),
    Seam(
        name="http.intake",
        role=Role.HTTP,
        kind=Kind.AROUND,
        feature=Feature.HINTS,
        target="sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
        parameters=("self", "obj"),
        body="kvflow.patches.intake:request",
        why="Takes the facts of every request, sends the predictions ahead of it, and notes when it is answered.",
    ),
    Seam(
        name="http.chat",
        role=Role.HTTP,
        kind=Kind.AFTER,
        feature=Feature.HINTS,
        target=f"{_CHAT}._convert_to_internal_request",
        parameters=("self", "request", "raw_request"),
        body="kvflow.patches.chat_hints:chat",
        why="Carries the top-level kv_hints key of /v1/chat/completions, which SGLang drops.",
    ),
    Seam(
        name="http.completions",
        role=Role.HTTP,
        kind=Kind.AFTER,
        feature=Feature.HINTS,
        target=f"{_COMPLETION}._convert_to_internal_request",
        parameters=("self", "request", "raw_request"),
        body="kvflow.patches.chat_hints:completion",
        why="Carries the top-level kv_hints key of /v1/completions, which SGLang drops.",
    ),
    Seam(
        name="http.answers",
        role=Role.HTTP,
        kind=Kind.REGISTRY,
        feature=Feature.HINTS,
        target="sglang.utils.TypeBasedDispatcher.__iadd__",
        parameters=("self", "other"),
        why="Brings the schedulers' answers to kvflow's questions back to the HTTP process.",
    ),
    Seam(
        name="http.dispatch",
        role=Role.HTTP,
        kind=Kind.AROUND,
        feature=Feature.HINTS,
        target="sglang.srt.managers.tokenizer_manager.TokenizerManager._dispatch_to_scheduler",
        parameters=("self", "obj"),
        body="kvflow.patches.mail:dispatch",
        why="Predictions travel with the request they are ahead of, nothing overtakes them, and no request loses them.",
    ),
    Seam(
        name="http.health",
        role=Role.HTTP,
        kind=Kind.CONSTANT,
        feature=Feature.ACCOUNTING,
        target=health.PREFIX,
        why="Schedulers are not asked how long requests wait during a health check, which any answer would satisfy.",
    ),
)
