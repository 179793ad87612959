"""Cross-agent reuse of text that is not a prefix: segments, anchors, offsets, rotation.

Tensors only; knows nothing of SGLang.
"""

from kvflow.reuse.gate import Difference, QualityGate
from kvflow.reuse.kv import KV
from kvflow.reuse.memory import HostMemory
from kvflow.reuse.outcomes import Outcomes
from kvflow.reuse.plan import Plan
from kvflow.reuse.prompt import Method, Mode, Prompt, Slot, SlotKey
from kvflow.reuse.repair import budget_tokens, chosen, deviations, joined
from kvflow.reuse.reuse import Reuse
from kvflow.reuse.rotation import Rotary, Rotation, rotate, rotate_exactly
from kvflow.reuse.splice import Chunk, Graft, cut

__all__ = [
    "KV",
    "Chunk",
    "Difference",
    "Graft",
    "HostMemory",
    "Method",
    "Mode",
    "Outcomes",
    "Plan",
    "Prompt",
    "QualityGate",
    "Reuse",
    "Rotary",
    "Rotation",
    "Slot",
    "SlotKey",
    "budget_tokens",
    "chosen",
    "cut",
    "deviations",
    "joined",
    "rotate",
    "rotate_exactly",
]
