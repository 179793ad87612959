"""Tools that take their time: the server learns how long, and keeps contexts by how soon they are wanted again.

What a tool takes is learned, by tool and verb (the first word of a shell command); a program may also say so itself.

Usage: python examples/tool_ttls.py [http://localhost:30000]
"""

import subprocess
import sys
from typing import Any

from openai import OpenAI

import kvflow

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:30000"
client = kvflow.instrument(OpenAI(base_url=f"{URL}/v1", api_key="none"))
COMMANDS = ["ls", "sleep 0.2", "echo done"]


@kvflow.tool("shell", verb=lambda command: command.split()[0])
def shell(command: str) -> str:
    return subprocess.run(command.split(), capture_output=True, text=True, check=False).stdout


@kvflow.tool("deploy", expected_s=0.5)  # nobody has to learn what is known
def deploy() -> str:
    return "deployed"


@kvflow.agent("operator", fixed_prompt_messages=1, tools=("shell", "deploy"))
def operate(task: str) -> str:
    messages: list[Any] = [{"role": "system", "content": "You run one command after the other."}]
    messages.append({"role": "user", "content": task})
    for command in COMMANDS:
        answer = client.chat.completions.create(model="default", messages=messages, max_tokens=8)
        messages += [answer.choices[0].message, {"role": "user", "content": shell(command)}]
    messages.append({"role": "user", "content": deploy()})
    answer = client.chat.completions.create(model="default", messages=messages, max_tokens=8)
    return str(answer.choices[0].message.content)


with kvflow.workflow("operations"):
    print(operate("Bring the service up."))
