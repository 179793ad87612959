"""The wire: SGLang's ``kv_hints`` envelope and the actions in it that kvflow executes.

pydantic models at the edge of the HTTP process and of the client; nothing below this package sees raw JSON. Knows
nothing of graphs, policies or SGLang.
"""

from kvflow.hints.build import command_action, envelope, step_action, tool_action
from kvflow.hints.commands import VERBS, AgentTarget, Command, PromptTarget, Target, WorkflowTarget
from kvflow.hints.models import (
    DecodedCommand,
    DecodedFact,
    DecodedHints,
    Fact,
    Outcome,
    Status,
    StepFact,
    ToolFact,
    decode_envelope,
)

__all__ = [
    "VERBS",
    "AgentTarget",
    "Command",
    "DecodedCommand",
    "DecodedFact",
    "DecodedHints",
    "Fact",
    "Outcome",
    "PromptTarget",
    "Status",
    "StepFact",
    "Target",
    "ToolFact",
    "WorkflowTarget",
    "command_action",
    "decode_envelope",
    "envelope",
    "step_action",
    "tool_action",
]
