"""The library a multi-agent program uses: it says what runs, and its LLM requests carry that along.

Facts go to servers that speak kvflow, as ``kv_hints`` of the program's own requests and, between requests, from a
background thread. Knows the wire (``kvflow.hints``) and nothing of policies or SGLang. Nothing here raises into the
program, or holds it up for longer than the first question to a server takes: a failure to hint means no hint.

    decorators   workflow, step, agent, tool      scopes, tools       what happens when one begins and ends
    context      who is running, in this task     wrapping, relays    running a function inside a scope
    carriers     openai_sdk, httpx_client         hinting             the envelope for one request
    segments     texts that several prompts quote    feedback  what came of a workflow
    graphs       the documents of declared graphs
    facts        telling what happens             outbox              facts on their way
    server       one server, and what it knows    answer              a question to it
    recorder     writing down what happens, for ``kvflow trace record``
"""

from kvflow.client.carriers import instrument, uninstrument
from kvflow.client.context import StepContext, carry, current
from kvflow.client.decorators import agent, step, tool, tool_call, workflow
from kvflow.client.feedback import feedback
from kvflow.client.hinting import extra_body
from kvflow.client.httpx_client import httpx_hook
from kvflow.client.outbox import configure, flush
from kvflow.client.scopes import Workflow
from kvflow.client.segments import segment

__all__ = [
    "StepContext",
    "Workflow",
    "agent",
    "carry",
    "configure",
    "current",
    "extra_body",
    "feedback",
    "flush",
    "httpx_hook",
    "instrument",
    "segment",
    "step",
    "tool",
    "tool_call",
    "uninstrument",
    "workflow",
]
