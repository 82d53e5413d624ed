"""What a program serves beside Kafka's clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .local_node import LocalNode


class Service(Protocol):
    """Something that is served in the event loop of a broker's nodes, such as HTTP.

    It takes its addresses before a start writes anything, and is there before the first node serves and
    until after the last one has stopped. A broker that is started again uses it again.
    """

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Take the addresses. Raises CannotListen."""

    async def run(self) -> None:
        """Serve until `close`, whoever is cancelled."""

    async def close(self) -> None:
        """End it; let go of addresses too for which nothing was served."""
