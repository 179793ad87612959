"""A scheduler that has nothing to do but wait for copies.

SGLang asks for them again and again without a pause, which costs nothing where a GPU copies. Here threads of the same
process do, and each time one needs the interpreter it would wait for a switch interval. With ``--sleep-on-idle``
SGLang's own poller pauses; without, nothing could end a pause, and threads are let through.
"""

from __future__ import annotations

import time
from typing import Any

_PAUSE_MS = 1


def let_copies_run(_result: None, scheduler: Any) -> None:
    """Pause while copies are all there is (hook after ``Scheduler.on_idle``); what comes in ends the pause."""
    cache = scheduler.tree_cache
    copies = getattr(cache, "ongoing_write_through", None) or getattr(cache, "ongoing_load_back", None)
    if scheduler.waiting_queue or not copies:
        return
    if scheduler.idle_sleeper is None:
        time.sleep(0)
    else:
        scheduler.idle_sleeper.poller.poll(_PAUSE_MS)
