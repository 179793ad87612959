"""What a body (SGLang, the simulator) offers to the data plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kvflow.engine.owners import Owners
    from kvflow.engine.prefetch import Load


class Node(Protocol):
    """A radix node, as far as ownership and order are concerned.

    The body gives every node the attributes ``owners``, ``load`` and ``arriving``, which start as None, and
    ``fetched``, which starts as False, keeps them while the node lives on any tier, and calls :meth:`Coordinator.split`
    when a node is divided. Names are SGLang's.

    Attributes:
        key: what the node spans; its length is in tokens.
        load: the prefetch that has brought it to the device, until somebody uses it.
        arriving: the load that brought it last; what it holds is there when that is not under way any more.
        fetched: it has been fetched from storage, and nobody has used it yet.
        parent: the node above; the root has none.
        children: the nodes below, by whatever the body finds them by.
        last_access_time: when it was last used. Only the order counts: ranks need not agree on the value.
        hit_count: how often it was found.
        backuped: the host has a copy.
        evicted: the device has none.
    """

    owners: Owners | None
    load: Load | None
    arriving: Load | None
    fetched: bool
    parent: Any
    children: Any
    last_access_time: float
    hit_count: int

    @property
    def key(self) -> Any:
        """What the node spans."""
        ...

    @property
    def backuped(self) -> bool:
        """The host has a copy."""
        ...

    @property
    def evicted(self) -> bool:
        """The device has none."""
        ...
