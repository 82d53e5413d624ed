"""Connections of a node to the other nodes of its cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import trio

from kbroker.client.connection import CONNECT_SECONDS, Connection, Dial, dial_tcp
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import ClientError
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.primitives import DecodeError

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig

    from . import Registration
    from .cluster import Cluster
    from .live_config import LiveConfig


LogIn: TypeAlias = Callable[[Connection], Awaitable[None]]
"""Shows another node who this one is. Raises OSError."""


def client_id_of(node_id: int) -> str:
    """As what a node asks other nodes."""
    return f"node-{node_id}"


def listener_of_nodes(config: BrokerConfig, names: Collection[str]) -> str:
    """By which of the listeners of a node, named `names`, other nodes reach it.

    As in Kafka: the one of ``inter.broker.listener.name``, or that which has the name of the protocol of
    ``security.inter.broker.protocol``; where there is none of that name, the first one.
    """
    name = config.inter_broker_listener_name or config.inter_broker_protocol
    return name if name in names else next(iter(names))


class Unreachable(OSError):
    """Another node did not answer; the text says which one, where, and why."""


class Gone(Unreachable):
    """The other side ended the connection, or takes none: its process is gone, as it seems."""


async def asked_for_nothing(connection: Connection) -> None:
    """Where nodes need not show who they are."""


class Way(NamedTuple):
    """How a node comes to others."""

    dial: Dial = dial_tcp
    log_in: LogIn = asked_for_nothing


PLAIN_WAY = Way()


class Peer:
    """A connection to one run of another node.

    Requests of several tasks wait for each other, so whoever waits long for its answers has one
    of its own.
    """

    __slots__ = ("_connection", "_timeout_seconds", "registration")

    def __init__(
        self, connection: Connection, registration: Registration, timeout_seconds: float
    ) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self.registration = registration

    @property
    def broken(self) -> bool:
        """Whether a request was not answered, so that no other one can be."""
        return self._connection.broken

    @property
    def is_closed_by_peer(self) -> bool:
        """Whether the other node has closed the connection, also when nobody has noticed yet."""
        return self._connection.is_closed_by_peer

    async def ask(self, message: Any) -> Any:
        """Send a request in the newest version that both nodes speak; returns the answer.

        Raises Unreachable; Gone when the other side ended the connection.
        """
        node_id = self.registration.node_id
        with trio.move_on_after(self._timeout_seconds):
            try:
                return await self._connection.ask(message)
            except OSError as error:
                raise _unreachable(node_id, None, str(error), Gone) from error
            except (ClientError, DecodeError, KafkaError) as error:
                raise _unreachable(node_id, None, str(error)) from error
        raise _unreachable(node_id, None, f"no answer within {self._timeout_seconds:g} s")

    async def aclose(self) -> None:
        """Close the connection, without waiting for the other side."""
        with trio.CancelScope(shield=True) as scope:
            scope.cancel()
            await self._connection.aclose()


class Peers:
    """The other nodes of the cluster, as one node talks to them."""

    def __init__(
        self,
        cluster: Cluster,
        config: LiveConfig,
        way: Way = PLAIN_WAY,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._way = way
        self._kept: dict[int, Peer] = {}

    def apart(self) -> Peers:
        """The same nodes over other connections, for who may wait long for answers; to be closed."""
        return Peers(self._cluster, self._config, self._way)

    async def ask(self, node_id: int, message: Any) -> Any:
        """Ask another node over a connection that is kept; returns the answer.

        For requests that are answered at once, and that may arrive twice: when a connection that
        was kept turns out to be closed, the request goes out again over a new one. Raises
        Unreachable; the request may have been carried out all the same.
        """
        kept = self._kept.get(node_id)
        if kept is not None and self._is_current(kept):
            with contextlib.suppress(Gone):
                return await kept.ask(message)
        peer = await self._renewed(node_id, kept)
        return await peer.ask(message)

    def _is_current(self, peer: Peer) -> bool:
        registration = peer.registration
        known = self._cluster.registration(registration.node_id)
        return not peer.broken and known is not None and known.epoch == registration.epoch

    async def _renewed(self, node_id: int, old: Peer | None) -> Peer:
        """A connection in the place of `old`; another task may have made it meanwhile."""
        fresh = await self.connect(node_id)
        kept = self._kept.get(node_id)
        if kept is not None and kept is not old and self._is_current(kept):
            await fresh.aclose()
            return kept
        self._kept[node_id] = fresh
        if kept is not None:
            await kept.aclose()
        return fresh

    async def connect(self, node_id: int) -> Peer:
        """Open a connection to another node; the caller closes it.

        Raises Unreachable; Gone when nobody listens there.
        """
        registration = self._cluster.registration(node_id)
        if registration is None:
            raise _unreachable(node_id, None, "it is not alive")
        endpoint = self.endpoint_of(registration)
        with trio.move_on_after(CONNECT_SECONDS):
            try:
                stream = await self._way.dial(endpoint)
                connection = Connection(stream, client_id_of(self._config.static.node_id))
                try:
                    await connection.negotiate()
                    await self._way.log_in(connection)
                except BaseException:
                    await trio.aclose_forcefully(stream)
                    raise
            except (OSError, DecodeError) as error:
                kind = Gone if _is_refused(error) else Unreachable
                raise _unreachable(node_id, endpoint, str(error), kind) from error
            timeout_seconds = self._config.now.replica_socket_timeout_ms / 1000
            return Peer(connection, registration, timeout_seconds)
        raise _unreachable(node_id, endpoint, f"no answer within {CONNECT_SECONDS} s")

    def endpoint_of(self, registration: Registration) -> Endpoint:
        """Where nodes reach a node."""
        listeners = registration.listeners
        return listeners[listener_of_nodes(self._config.now, listeners)]

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        for peer in self._kept.values():
            await peer.aclose()
        self._kept.clear()


def _is_refused(error: Exception) -> bool:
    """Whether no address of a node takes connections: trio tells of each one in the cause."""
    found = error.__cause__ or error
    reasons = found.exceptions if isinstance(found, ExceptionGroup) else (found,)
    return all(isinstance(each, ConnectionRefusedError) for each in reasons)


def _unreachable(
    node_id: int, endpoint: Endpoint | None, reason: str, kind: type[Unreachable] = Unreachable
) -> Unreachable:
    where = f"node {node_id}" + (f" at {endpoint}" if endpoint else "")
    return kind(f"{where}: {reason}")
