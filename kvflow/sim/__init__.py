"""The simulator: the second body of the coordinator.

Programs of a trace run in a closed loop against a simulated SGLang server. Claims, policies, guard, accounting and the
control plane are the objects the real server runs; what is simulated is time, the radix tree, memory and batching.
"""

from kvflow.sim.client import Waits
from kvflow.sim.profile import Machine, Model, Profile, load_profile, profile_names
from kvflow.sim.run import SimResult, SimSettings, simulate

__all__ = [
    "Machine",
    "Model",
    "Profile",
    "SimResult",
    "SimSettings",
    "Waits",
    "load_profile",
    "profile_names",
    "simulate",
]
