"""SGLang's way in: the ``sglang.srt.plugins`` entry point, called in every process of a server.

Does next to nothing unless kvflow is enabled: the launching process learns our flags, all others return at once. If it
is, schedulers are attached, and every other child learns which messages of ours it may have to pass on.
Whether kvflow is enabled, and with which settings, reaches spawned processes through the environment.
"""

from __future__ import annotations

import inspect
import multiprocessing

from kvflow.patches import cpu
from kvflow.patches.catalog import seams_of
from kvflow.patches.seams import Feature, Role, SeamBook
from kvflow.patches.switch import books, enabled


def register() -> None:
    """Attach kvflow to the current process as far as its role asks for."""
    if multiprocessing.parent_process() is None:
        attach(Role.LAUNCH)
        return
    scheduler = _is_scheduler()
    if scheduler and cpu.wanted():
        cpu.install()
    if enabled():
        attach(Role.SCHEDULER if scheduler else Role.RELAY)


def attach(role: Role) -> SeamBook:
    """Have the seams of one role applied to this process; what does not hold is reported by `switch.books`."""
    if role in books:
        return books[role]
    book = books[role] = SeamBook(seams_of(role))
    book.register()
    if role is not Role.LAUNCH and book.holds(Feature.HINTS):
        from kvflow.patches import messages

        messages.announce()
    if role is Role.SCHEDULER:
        from kvflow.patches import tree

        tree.register()
    return book


def _is_scheduler() -> bool:
    """Tell a scheduler from the other children: detokenizer and data-parallel controller hold no cache."""
    return any(frame.function == "run_scheduler_process" for frame in inspect.stack(context=0))
