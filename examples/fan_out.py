"""A declared graph with a fan-out, a join and a tool, asynchronously.

The graph tells the server what comes next before it has seen a single run. Without one it learns from traffic.

Usage: python examples/fan_out.py [http://localhost:30000]
"""

import asyncio
import sys
from itertools import cycle
from typing import Any

from openai import AsyncOpenAI

import kvflow
from kvflow import END, START, AgentStepGraph

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:30000"
client = kvflow.instrument(AsyncOpenAI(base_url=f"{URL}/v1", api_key="none"))

GRAPH = (
    AgentStepGraph("research")
    .edge(START, "planner")
    .fan_out("planner", ["web", "papers"], join="writer")
    .edge("writer", END)
)


async def ask(system: str, *turns: str) -> str:
    messages: Any = [{"role": "system", "content": system}]
    messages += [{"role": role, "content": turn} for role, turn in zip(cycle(("user", "assistant")), turns)]
    stream = await client.chat.completions.create(model="default", messages=messages, max_tokens=16, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


@kvflow.agent("planner", fixed_prompt_messages=1)
async def planner(question: str) -> str:
    return await ask("You turn questions into research plans.", question)


@kvflow.tool("fetch", expected_s=0.2)
async def fetch(query: str) -> str:
    await asyncio.sleep(0.1)  # the server knows when the context of the agent that waits is wanted again
    return f"ten results for {query!r}"


@kvflow.agent("web", fixed_prompt_messages=1)
async def web(plan: str) -> str:
    query = await ask("You read web pages.", plan)
    return await ask("You read web pages.", plan, query, await fetch(query))


@kvflow.agent("papers", fixed_prompt_messages=1)
async def papers(plan: str) -> str:
    return await ask("You read papers.", plan)


@kvflow.agent("writer", fixed_prompt_messages=1)
async def writer(*findings: str) -> str:
    return await ask("You write the answer.", "\n".join(findings))


async def research(question: str) -> str:
    async with kvflow.workflow("research", graph=GRAPH):
        plan = await planner(question)
        return await writer(*await asyncio.gather(web(plan), papers(plan)))


async def main() -> None:
    questions = ["Why is the sky blue?", "Why is grass green?"]
    print(await asyncio.gather(*(research(question) for question in questions)))


asyncio.run(main())
