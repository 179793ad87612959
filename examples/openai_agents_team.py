"""Two agents of the OpenAI Agents SDK, one of which hands over to the other, and a tool.

Needs `pip install ".[openai-agents]"` in a clone, and a server with the `--tool-call-parser` of its model: without one
no agent hands over, and no tool is called.

Usage: python examples/openai_agents_team.py [http://localhost:30000]
"""

import asyncio
import sys

from agents import (  # pyright: ignore[reportMissingImports]
    Agent,
    ModelSettings,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

import kvflow
from kvflow.integrations.openai_agents import instrument

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:30000"
set_tracing_disabled(True)
SHORT = ModelSettings(max_tokens=128)


@function_tool
def opening_hours(shop: str) -> str:
    """When a shop is open."""
    return f"{shop}: 9 to 17"


clerk = Agent(
    name="clerk", instructions="You answer questions about shops.", tools=[opening_hours], model_settings=SHORT
)
triage = Agent(name="triage", instructions="You find out who can help.", handoffs=[clerk], model_settings=SHORT)


async def main() -> None:
    instrument(triage, client=AsyncOpenAI(base_url=f"{URL}/v1", api_key="none"))
    with kvflow.workflow("support"):
        first = await Runner.run(triage, "Is the bakery open?")
        second = await Runner.run(clerk, [*first.to_input_list(), {"role": "user", "content": "And on Sundays?"}])
    print(second.final_output)


asyncio.run(main())
