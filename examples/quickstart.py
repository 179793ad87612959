"""Two agents and one workflow, with the OpenAI SDK.

Usage: python examples/quickstart.py [http://localhost:30000]
"""

import sys
from typing import Any

from openai import OpenAI

import kvflow

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:30000"
client = kvflow.instrument(OpenAI(base_url=f"{URL}/v1", api_key="none"))


def ask(system: str, user: str) -> str:
    messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    answer = client.chat.completions.create(model="default", messages=messages, max_tokens=16)
    return answer.choices[0].message.content or ""


@kvflow.agent("planner", fixed_prompt_messages=1)
def plan(task: str) -> str:
    return ask("You plan. Answer with numbered steps.", task)


@kvflow.agent("coder", fixed_prompt_messages=1)
def code(steps: str) -> str:
    return ask("You write Python. Answer with code only.", steps)


with kvflow.workflow("feature"):
    print(code(plan("Sort a list of names.")))
