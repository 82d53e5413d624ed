"""Connections of a node to the other nodes of its cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
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


# Authenticates this node to another node. Raises OSError.
Authenticate: TypeAlias = Callable[[Connection], Awaitable[None]]


def client_id_of(node_id: int) -> str:
    """Return the client ID of a node's requests to other nodes."""
    return f"node-{node_id}"


def is_of_node(client_id: str | None, node_ids: Iterable[int]) -> bool:
    """Return True if a client ID is that of one of the nodes."""
    return any(client_id == client_id_of(each) for each in node_ids)


def find_inter_broker_listener_name(config: BrokerConfig, names: Collection[str]) -> str:
    """Return the name of the listener that other nodes use.

    As in Kafka, it is the listener named by ``inter.broker.listener.name``, or the one named like the
    protocol in ``security.inter.broker.protocol``. If neither exists, it is the first listener.
    """
    name = config.inter_broker_listener_name or config.inter_broker_protocol
    return name if name in names else next(iter(names))


class Unreachable(OSError):
    """Another node did not respond; the message contains the node, its address and the cause."""


class ConnectionLost(Unreachable):
    """The node closed or refused the connection: its process has probably terminated."""


async def no_authentication(connection: Connection) -> None:
    """Do nothing: the listener requires no authentication."""


class PeerTransport(NamedTuple):
    """Functions that connect a node to other nodes and authenticate it."""

    dial: Dial = dial_tcp
    authenticate: Authenticate = no_authentication


PLAIN_TRANSPORT = PeerTransport()


class Peer:
    """A connection to one run of another node.

    It processes one request at a time, so tasks that wait long for responses need a connection of
    their own.
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
        """True if a request got no response, so that the connection is unusable."""
        return self._connection.broken

    @property
    def is_closed_by_peer(self) -> bool:
        """True if the other node has closed the connection, even if no request has failed yet."""
        return self._connection.is_closed_by_peer

    async def ask(self, message: Any) -> Any:
        """Send a request in the newest version that both nodes support, and return the response.

        Raises:
            Unreachable: No response; ConnectionLost if the other node closed the connection.
        """
        node_id = self.registration.node_id
        with trio.move_on_after(self._timeout_seconds):
            try:
                return await self._connection.ask(message)
            except OSError as error:
                raise _unreachable(node_id, None, str(error), ConnectionLost) from error
            except (ClientError, DecodeError, KafkaError) as error:
                raise _unreachable(node_id, None, str(error)) from error
        raise _unreachable(node_id, None, f"no response within {self._timeout_seconds:g} s")

    async def aclose(self) -> None:
        """Close the connection without waiting for the other node."""
        with trio.CancelScope(shield=True) as scope:
            scope.cancel()
            await self._connection.aclose()


class Peers:
    """The connections of one node to the other nodes of the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        config: LiveConfig,
        transport: PeerTransport = PLAIN_TRANSPORT,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._transport = transport
        self._pool: dict[int, Peer] = {}
        self._is_closed = False

    def with_own_connections(self) -> Peers:
        """Return a copy with separate connections, for long waits; the caller closes it."""
        return Peers(self._cluster, self._config, self._transport)

    async def ask(self, node_id: int, message: Any) -> Any:
        """Send a request over a pooled connection and return the response.

        For idempotent requests with immediate responses: if the pooled connection turns out to be
        closed, the request is sent again over a new one.

        Raises:
            Unreachable: No response. The node may have executed the request nevertheless.
        """
        pooled = self._pool.get(node_id)
        if pooled is not None and self._is_current(pooled):
            with contextlib.suppress(ConnectionLost):
                return await pooled.ask(message)
        peer = await self._reconnect(node_id, pooled)
        return await peer.ask(message)

    def _is_current(self, peer: Peer) -> bool:
        registration = peer.registration
        known = self._cluster.registration(registration.node_id)
        return not peer.broken and known is not None and known.epoch == registration.epoch

    async def _reconnect(self, node_id: int, old: Peer | None) -> Peer:
        """Return a connection that replaces `old`; another task may have opened it concurrently."""
        fresh = await self.connect(node_id)
        if self._is_closed:
            await fresh.aclose()
            raise _unreachable(node_id, None, "this node is stopping")
        pooled = self._pool.get(node_id)
        if pooled is not None and pooled is not old and self._is_current(pooled):
            await fresh.aclose()
            return pooled
        self._pool[node_id] = fresh
        if pooled is not None:
            await pooled.aclose()
        return fresh

    async def connect(self, node_id: int) -> Peer:
        """Open a connection to another node; the caller closes it.

        Raises:
            Unreachable: The node did not respond; ConnectionLost if it refused the connection.
        """
        registration = self._cluster.registration(node_id)
        if registration is None:
            raise _unreachable(node_id, None, "it is not running")
        endpoint = self.endpoint_of(registration)
        with trio.move_on_after(CONNECT_SECONDS):
            try:
                stream = await self._transport.dial(endpoint)
                connection = Connection(stream, client_id_of(self._config.static.node_id))
                try:
                    await connection.negotiate()
                    await self._transport.authenticate(connection)
                except BaseException:
                    await trio.aclose_forcefully(stream)
                    raise
            except (OSError, DecodeError) as error:
                kind = ConnectionLost if _is_refused(error) else Unreachable
                raise _unreachable(node_id, endpoint, str(error), kind) from error
            timeout_seconds = self._config.now.replica_socket_timeout_ms / 1000
            return Peer(connection, registration, timeout_seconds)
        raise _unreachable(node_id, endpoint, f"no response within {CONNECT_SECONDS} s")

    def endpoint_of(self, registration: Registration) -> Endpoint:
        """Return the endpoint at which other nodes reach a node."""
        listeners = registration.listeners
        return listeners[find_inter_broker_listener_name(self._config.now, listeners)]

    async def aclose(self) -> None:
        """Close the pooled connections; later requests are rejected."""
        self._is_closed = True
        while self._pool:
            _, peer = self._pool.popitem()
            await peer.aclose()


def _is_refused(error: Exception) -> bool:
    """Return True if all addresses refused the connection; trio reports each one in the cause."""
    found = error.__cause__ or error
    reasons = found.exceptions if isinstance(found, ExceptionGroup) else (found,)
    return all(isinstance(each, ConnectionRefusedError) for each in reasons)


def _unreachable(
    node_id: int, endpoint: Endpoint | None, reason: str, kind: type[Unreachable] = Unreachable
) -> Unreachable:
    node = f"node {node_id}" + (f" at {endpoint}" if endpoint else "")
    return kind(f"{node}: {reason}")
