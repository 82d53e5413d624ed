"""Interface of services that run together with a broker, such as HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .local_node import LocalNode


class Service(Protocol):
    """A service that runs in the event loop of a broker's nodes, such as HTTP.

    The service binds its addresses before the broker writes anything. It runs from before the
    first node serves clients until after the last node has stopped. A broker that is started again
    uses the same service.
    """

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Bind the addresses.

        Args:
            nodes: Nodes of this process.

        Raises:
            CannotListen: An address cannot be bound.
        """

    async def run(self) -> None:
        """Serve until `close` is called; ignore cancellation until then."""

    async def close(self) -> None:
        """Stop the service, and release all addresses, also if `run` was not called."""
