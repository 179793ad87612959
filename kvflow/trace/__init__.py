"""Traces of multi-agent programs: one schema, readers for what others publish, and synthetic ones.

Pure input and output: knows files and events, nothing of engines, predictions or policies.
"""

from kvflow.trace.importers import FORMATS, import_trace, open_trace
from kvflow.trace.io import BadRow, OnBadRow, read_header, read_trace, write_trace
from kvflow.trace.program import BadEvent, Program, programs
from kvflow.trace.repeat import repeated
from kvflow.trace.schema import (
    MAIN_THREAD,
    Event,
    Join,
    LLMCall,
    Piece,
    Prompt,
    Spawn,
    Supersede,
    ThreadEvent,
    ToolEnd,
    ToolStart,
    TraceHeader,
    WorkflowEnd,
    WorkflowStart,
)
from kvflow.trace.stats import TraceStats, trace_stats
from kvflow.trace.synth import SynthOptions, synthetic_trace

__all__ = [
    "FORMATS",
    "MAIN_THREAD",
    "BadEvent",
    "BadRow",
    "Event",
    "Join",
    "LLMCall",
    "OnBadRow",
    "Piece",
    "Program",
    "Prompt",
    "Spawn",
    "Supersede",
    "SynthOptions",
    "ThreadEvent",
    "ToolEnd",
    "ToolStart",
    "TraceHeader",
    "TraceStats",
    "WorkflowEnd",
    "WorkflowStart",
    "import_trace",
    "open_trace",
    "programs",
    "read_header",
    "read_trace",
    "repeated",
    "synthetic_trace",
    "trace_stats",
    "write_trace",
]
