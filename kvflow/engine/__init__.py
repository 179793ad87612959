"""The data plane: who claims which radix node, and in which order nodes leave.

Runs on the scheduler thread of every rank, driven by ordered messages; holds no clock, randomness, environment or
SGLang object. `patches` lends it the radix nodes of SGLang, the simulator its own: :mod:`kvflow.engine.ports` says
what a node must offer.
"""

from kvflow.engine.accounting import Accounting, Counters, Tier
from kvflow.engine.backup import BackupPlanner
from kvflow.engine.batch_loads import BatchLoads
from kvflow.engine.boundary import FixedPromptBoundary
from kvflow.engine.choice import FREE_CHOICE, NO_CHOICE, Choice
from kvflow.engine.claim import Claim
from kvflow.engine.claims import ClaimTable
from kvflow.engine.commands import Answer, Capacity, Commands, KvCommand
from kvflow.engine.coordinator import Coordinator, PromptClaim
from kvflow.engine.copies import given_up_first, is_exclusive
from kvflow.engine.digests import digest_of_head, digests, rest_tokens, unit_tokens
from kvflow.engine.fetch import Fetch, Fetcher
from kvflow.engine.guard import Guard, GuardSettings, Regret
from kvflow.engine.journal import Journal
from kvflow.engine.locate import Located
from kvflow.engine.ports import Node
from kvflow.engine.prefetch import Load, Prefetcher, brought_tokens
from kvflow.engine.programs import Programs
from kvflow.engine.retry import LoadRetry
from kvflow.engine.room import DeviceView, Room, unlocked_tokens

__all__ = [
    "FREE_CHOICE",
    "NO_CHOICE",
    "Accounting",
    "Answer",
    "BackupPlanner",
    "BatchLoads",
    "Capacity",
    "Choice",
    "Claim",
    "ClaimTable",
    "Commands",
    "Coordinator",
    "Counters",
    "DeviceView",
    "Fetch",
    "Fetcher",
    "FixedPromptBoundary",
    "Guard",
    "GuardSettings",
    "Journal",
    "KvCommand",
    "Load",
    "LoadRetry",
    "Located",
    "Node",
    "Prefetcher",
    "Programs",
    "PromptClaim",
    "Regret",
    "Room",
    "Tier",
    "brought_tokens",
    "digest_of_head",
    "digests",
    "given_up_first",
    "is_exclusive",
    "rest_tokens",
    "unit_tokens",
    "unlocked_tokens",
]
