"""The wire: SGLang's ``kv_hints`` envelope and the actions in it that kvflow executes.

pydantic models at the edge of the HTTP process and of the client; nothing below this package sees raw JSON. Knows
nothing of graphs, policies or SGLang.
"""

from kvflow.hints.build import command_action, envelope, feedback_action, segments_action, step_action, tool_action
from kvflow.hints.commands import VERBS, AgentTarget, Command, PromptTarget, Target, WorkflowTarget
from kvflow.hints.decode import DecodedCommand, DecodedFact, DecodedHints, DecodedSegments, decode_envelope
from kvflow.hints.models import Fact, FeedbackFact, Outcome, Status, StepFact, ToolFact, checked
from kvflow.hints.segments import SegmentRange, Segments

__all__ = [
    "VERBS",
    "AgentTarget",
    "Command",
    "DecodedCommand",
    "DecodedFact",
    "DecodedHints",
    "DecodedSegments",
    "Fact",
    "FeedbackFact",
    "Outcome",
    "PromptTarget",
    "SegmentRange",
    "Segments",
    "Status",
    "StepFact",
    "Target",
    "ToolFact",
    "WorkflowTarget",
    "checked",
    "command_action",
    "decode_envelope",
    "envelope",
    "feedback_action",
    "segments_action",
    "step_action",
    "tool_action",
]
