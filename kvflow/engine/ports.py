"""What a body (SGLang, the simulator) offers to the data plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvflow.engine.owners import Owners


class Node(Protocol):
    """A radix node, as far as ownership is concerned.

    The body gives every node an ``owners`` attribute that starts as None, keeps it while the node lives on any tier,
    and calls :meth:`Coordinator.split` when a node is divided.
    """

    owners: Owners | None
