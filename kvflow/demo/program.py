"""A multi-agent program as a user would write it: ten agents review a document.

It has a branch (trivial documents go straight to the report), a fan-out with a join (four reviewers, one critic) and a
loop (the verifier sends work back). What it decides depends on what the model says, so two runs go the same way only
if every token is the same.
"""

from __future__ import annotations

import asyncio
import zlib
from functools import cache
from typing import Protocol

import kvflow
from kvflow import END, START, AgentStepGraph
from kvflow.demo.corpus import manual

WORKFLOW_TYPE = "code_review"
REVIEWERS = ("security", "performance", "style", "testing")
MAX_FIXES = 3

GRAPH = (
    AgentStepGraph(WORKFLOW_TYPE)
    .edge(START, "triage")
    .edge("triage", "planner", probability=0.75)
    .edge("triage", "writer", probability=0.25)
    .fan_out("planner", REVIEWERS, join="critic")
    .edge("critic", "fixer", probability=0.75)
    .edge("critic", "writer", probability=0.25)
    .edge("fixer", "verifier")
    .edge("verifier", "fixer", probability=0.35)
    .edge("verifier", "writer", probability=0.65)
    .edge("writer", END)
)

_ROLES = {
    "triage": ("Decide whether the document deserves a review.", "string"),
    "planner": ("Write a plan for the reviewers.", "sched"),
    "security": ("Look for vulnerabilities.", "secrets"),
    "performance": ("Look for wasted time and memory.", "functools"),
    "style": ("Look for code that is hard to read.", "textwrap"),
    "testing": ("Say what is not tested.", "doctest"),
    "critic": ("Weigh the reviews against each other.", "statistics"),
    "fixer": ("Propose a change for the most important finding.", "difflib"),
    "verifier": ("Say whether the proposed change solves the finding.", "inspect"),
    "writer": ("Write the report for the author.", "email.message"),
}


class Model(Protocol):
    """What the program needs of a language model."""

    async def ask(self, system: str, user: str) -> str:
        """Answer a prompt."""
        ...


@cache
def system_prompt(agent: str, chars: int) -> str:
    """Fixed prompt of an agent: its task and the manual it works by."""
    task, module = _ROLES[agent]
    return f"You are the {agent} of a review team. {task}\n\nYour manual:\n{manual(module, chars)}"


class Review:
    """The program, bound to a model.

    Args:
        model: who answers.
        prompt_chars: length of the manual in every fixed prompt.
    """

    def __init__(self, model: Model, prompt_chars: int) -> None:
        self._model = model
        self._prompt_chars = prompt_chars

    async def run(self, document: str) -> str:
        """Review one document; returns the report."""
        async with kvflow.workflow(WORKFLOW_TYPE, graph=GRAPH):
            if chance(await self.triage(document)) < 0.25:
                return await self.writer(document, "nothing to review")
            plan = await self.planner(document)
            reviews = await asyncio.gather(*(self.review(name, document, plan) for name in REVIEWERS))
            verdict = await self.critic(plan, reviews)
            if chance(verdict) < 0.25:
                return await self.writer(document, verdict)
            for _ in range(MAX_FIXES):
                change = await self.fixer(document, verdict)
                verdict = await self.verifier(document, change)
                if chance(verdict) >= 0.35:
                    break
            return await self.writer(document, verdict)

    @kvflow.agent("triage", fixed_prompt_messages=1)
    async def triage(self, document: str) -> str:
        return await self._ask("triage", document)

    @kvflow.agent("planner", fixed_prompt_messages=1)
    async def planner(self, document: str) -> str:
        return await self._ask("planner", document)

    async def review(self, name: str, document: str, plan: str) -> str:
        async with kvflow.step(name, fixed_prompt_messages=1):
            return await self._ask(name, f"{plan}\n{document}")

    @kvflow.agent("critic", fixed_prompt_messages=1)
    async def critic(self, plan: str, reviews: list[str]) -> str:
        return await self._ask("critic", "\n".join([plan, *reviews]))

    @kvflow.agent("fixer", fixed_prompt_messages=1)
    async def fixer(self, document: str, verdict: str) -> str:
        return await self._ask("fixer", f"{verdict}\n{document}")

    @kvflow.agent("verifier", fixed_prompt_messages=1)
    async def verifier(self, document: str, change: str) -> str:
        return await self._ask("verifier", f"{change}\n{document}")

    @kvflow.agent("writer", fixed_prompt_messages=1)
    async def writer(self, document: str, verdict: str) -> str:
        return await self._ask("writer", f"{verdict}\n{document}")

    async def _ask(self, agent: str, user: str) -> str:
        return await self._model.ask(system_prompt(agent, self._prompt_chars), user)


def chance(text: str) -> float:
    """Turn what a model said into a number in [0, 1)."""
    return zlib.crc32(text.encode()) % 10_000 / 10_000
