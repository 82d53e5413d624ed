"""Server that accepts clients on the Kafka listeners of one node.

No other module opens Kafka listeners.
"""

from __future__ import annotations

import errno
import logging
import math
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from kbroker.client.endpoint import EVERY_INTERFACE, Endpoint
from kbroker.handlers.context import Api, Peer
from kbroker.node.listener_security import ListenerSecurity
from kbroker.node.node import Node
from kbroker.runtime.descriptors import shares
from kbroker.security.acls import IN_PROCESS_CLIENT, Client
from kbroker.security.errors import AuthenticationError
from kbroker.security.principals import ANONYMOUS

from .connection import Connection, Intercept
from .handshakes import Handshakes
from .readiness_poller import HAS_EPOLL, ReadinessPoller
from .transport import PlainTransport, Transport

if TYPE_CHECKING:
    from kbroker.security.tls import Certificates
    from kbroker.security.users import Users

logger = logging.getLogger(__name__)
# Mechanism in the audit log for clients that authenticate with a TLS certificate only.
CERTIFICATE = "certificate"

LOOPBACK = ("127.0.0.1", "::1")
LOOPBACK_NAMES = ("localhost", *LOOPBACK)
# Hosts that get one socket per address family. Java does the same for the first three.
_SOCKET_HOSTS = {
    "": ("0.0.0.0", "::"),
    "0.0.0.0": ("0.0.0.0", "::"),
    "::": ("::", "0.0.0.0"),
    "localhost": LOOPBACK,
}
BIND_TRIES = 20
# Range of randomly chosen free ports. The default range of ephemeral ports begins at `LAST_PORT`.
FIRST_PORT, LAST_PORT = 14_000, 32_768
# Seconds between two checks for idle connections.
REAP_SECONDS = 0.5
# Seconds between two checks above which the event loop is delayed. What clients have sent in the
# meantime may not be read yet, so this time does not count against them.
DELAYED_REAP_SECONDS = 2 * REAP_SECONDS
# Connections to check, and to close, per event-loop iteration. The task of a closed connection takes
# up to 0.1 ms to end.
CHECKED_AT_ONCE, CLOSED_AT_ONCE = 1000, 20
# Seconds between two checks while a shutdown waits for pending responses.
DRAIN_SECONDS = 0.005
# Seconds without accepting connections after the process ran out of file descriptors.
ACCEPT_PAUSE_SECONDS = 0.1
CREATION_RATE = "max.connection.creation.rate"
ALL_LISTENERS = ""
# Lets a restarted broker bind an address whose old connections are in TIME_WAIT. Windows allows
# that anyway; there the option prevents other processes from binding the same address.
_REUSE_ADDRESS = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)


@dataclass(frozen=True, slots=True)
class Listener:
    """An address that clients connect to.

    Attributes:
        name: Listener name.
        host: Host to bind; empty, 0.0.0.0 or :: for all interfaces.
        port: Port to bind; 0 for a free port.
        advertised: Advertised address; None to advertise the address that the client used.
        security: TLS and authentication; None for a PLAINTEXT listener.
    """

    name: str
    host: str
    port: int
    advertised: Endpoint | None = None
    security: ListenerSecurity | None = None

    @property
    def address(self) -> str:
        """Name and address as in the setting `listeners`."""
        return f"{self.name}://{Endpoint(self.host, self.port)}"

    def overlaps(self, other: Listener) -> bool:
        """Return True if both listeners would bind the same port of the same address."""
        if self.port != other.port or not self.port:
            return False
        if self.host in EVERY_INTERFACE or other.host in EVERY_INTERFACE:
            return True
        return not set(_socket_hosts(self.host)).isdisjoint(_socket_hosts(other.host))

    @property
    def certificates(self) -> Certificates | None:
        """TLS certificates; None for a listener without TLS."""
        return None if self.security is None else self.security.certificates

    @property
    def users(self) -> Users | None:
        """Users of SASL authentication; None for a listener without SASL."""
        return None if self.security is None else self.security.users

    @property
    def requires_client_certificate(self) -> bool:
        """Return True if clients must authenticate."""
        return self.security is not None and self.security.requires_client_certificate


class CannotListen(Exception):
    """The address of a listener cannot be bound. The message contains a fix."""


Bound = list[tuple[Listener, socket.socket]]


async def bind_all(listeners: Sequence[Listener]) -> Bound:
    """Bind the addresses of all listeners, or none. Clients cannot connect before `listen_all`.

    Raises:
        CannotListen: An address cannot be bound.
    """
    bound: Bound = []
    try:
        for listener in listeners:
            bound += [(listener, each) for each in await _bind(listener)]
    except BaseException:
        close_all(bound)
        raise
    return bound


def listen_all(bound: Bound, backlog: int) -> None:
    """Listen on bound sockets, so that clients can connect and wait to be accepted.

    Args:
        bound: Sockets of `bind_all`.
        backlog: Maximum number of connections that wait to be accepted.

    Raises:
        CannotListen: Another process listens on the address.
    """
    for listener, each in bound:
        try:
            each.listen(backlog)
        except OSError as error:  # another process bound the address and listened first
            raise _new_bind_error(listener, each.getsockname()[1], error) from None


def close_all(bound: Bound) -> None:
    """Close the sockets of listeners, and wake the tasks that accept clients on them."""
    for _, each in bound:
        if each.fileno() >= 0:
            trio.lowlevel.notify_closing(each)
            each.close()


async def _bind(listener: Listener) -> list[socket.socket]:
    """Bind the sockets of a listener.

    Raises:
        CannotListen: The address is in use, or does not belong to this machine.
    """
    if listener.port:
        return await _bind_at(listener, listener.port)
    for _ in range(BIND_TRIES - 1):
        with suppress(CannotListen):
            return await _bind_at(listener, pick_free_port())
    return await _bind_at(listener, pick_free_port())


def pick_free_port() -> int:
    """Return a random port outside the range of ephemeral ports, which may be free.

    While the broker is down, the system does not assign such a port to an outgoing connection. So
    the broker can bind it again, and its clients reach no other process in the meantime. Returns 0
    if nearly all ports are ephemeral.
    """
    try:
        last = int(
            Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0]
        )
    except OSError:
        last = LAST_PORT
    # Not the global generator: tests may have seeded it.
    return random.SystemRandom().randrange(FIRST_PORT, last) if last > 2 * FIRST_PORT else 0


async def _bind_at(listener: Listener, port: int) -> list[socket.socket]:
    """Bind one port on all addresses of the listener's host."""
    try:
        return await bind_host(listener.host, port, named=bool(listener.port))
    except OSError as error:
        raise _new_bind_error(listener, port, error) from None


async def bind_host(host: str, port: int, *, named: bool) -> list[socket.socket]:
    """Bind one port on all IPv4 and IPv6 addresses of a host.

    Args:
        host: An address or a name; "", 0.0.0.0 and :: are all interfaces.
        port: The port; 0 for a free one, the same for all addresses.
        named: The port was configured. A random port is not shared with another process that bound
            it at the same time.

    Raises:
        OSError: An address cannot be bound.
    """
    hosts = _socket_hosts(host)
    if len(hosts) > 1:
        hosts = tuple(filter(_has_address, hosts)) or hosts
    opened: list[socket.socket] = []
    try:
        for each in hosts:
            await _open(each, port, opened, named=named)
            port = port or opened[0].getsockname()[1]
    except OSError:
        for one in opened:
            one.close()
        raise
    return opened


def _socket_hosts(host: str) -> tuple[str, ...]:
    """Return the hosts to bind for the host of a listener, the configured one first."""
    try:
        # Java treats an IPv4-mapped IPv6 address as the IPv4 address.
        mapped = IPv6Address(host).ipv4_mapped
    except ValueError:
        mapped = None
    return _SOCKET_HOSTS.get(host, (host,)) if mapped is None else (str(mapped),)


def _has_address(host: str) -> bool:
    """Return True if this machine has an address; a machine without IPv6 lacks IPv6 addresses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


async def _open(host: str, port: int, opened: list[socket.socket], *, named: bool) -> None:
    """Add sockets that are bound to a host to `opened`, one for each address that it resolves to.

    Raises:
        OSError: An address cannot be bound.
    """
    for family, kind, protocol, _, address in await trio.socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        each = socket.socket(family, kind, protocol)
        opened.append(each)
        each.setblocking(False)
        if family == socket.AF_INET6:
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if named:
            each.setsockopt(socket.SOL_SOCKET, _REUSE_ADDRESS, 1)
        each.bind(address)
        if not named and _REUSE_ADDRESS == socket.SO_REUSEADDR:
            # Let a restarted broker bind this port again.
            each.setsockopt(socket.SOL_SOCKET, _REUSE_ADDRESS, 1)


def _new_bind_error(listener: Listener, port: int, error: OSError) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        return CannotListen(
            f"{listener.address}: port {port} is in use; stop the process that uses it, or choose "
            "another port (--port 0 selects a free one)"
        )
    if error.errno == errno.EACCES:
        return CannotListen(
            f"{listener.address}: no permission to listen on port {port} ({error.strerror}); choose a "
            "port above 1023 with --port, or run as a user that may bind this port"
        )
    return CannotListen(
        f"{listener.address}: cannot bind this address ({error.strerror}); set --host to an address "
        "of this machine"
    )


class Server:
    """Server that accepts the clients of one node on its listeners, within connection limits.

    Args:
        node: The node.
        apis: Served APIs by key.
        bound: Sockets of the listeners, which listen when `run` is called.
        intercept: Creates the interceptor of each connection, for fault injection.
        nodes: Number of nodes that share the file descriptors of this process.
        bootstrap: Listening sockets that the nodes of other processes accept on as well.
    """

    def __init__(
        self,
        node: Node,
        apis: Mapping[int, Api],
        bound: Bound,
        intercept: Intercept | None = None,
        *,
        nodes: int = 1,
        bootstrap: Bound | None = None,
    ) -> None:
        self.connections: set[Connection] = set()
        self._node = node
        self._apis = apis
        self._intercept = intercept
        self._sockets = bound
        self._bootstrap = bootstrap or []
        self._open = 0
        self._per_host: Counter[str] = Counter()
        self._connections_max = max(shares().connections // nodes, 1)
        # Nursery of the tasks that serve clients.
        self._tasks: trio.Nursery | None = None
        self._is_accepting = False
        self._context = copy_context()
        # Earliest time of the next accepted connection, by listener name and for all listeners.
        self._next_accept: dict[str, float] = {}
        self._quotas = node.cluster.client_quotas
        self._accepting = trio.CancelScope()
        self._handshakes = Handshakes()
        self._poller = ReadinessPoller() if HAS_EPOLL else None

    def endpoints(self) -> list[tuple[Listener, Endpoint]]:
        """Return the address of each listener with its actual port."""
        addresses: dict[Listener, Endpoint] = {}
        for listener, each in self._sockets:
            addresses.setdefault(listener, Endpoint(*each.getsockname()[:2]))
        return list(addresses.items())

    def advertised(self) -> dict[str, Endpoint]:
        """Return the advertised address of each listener by name, independently of a client."""
        found = {}
        for listener, each in self.endpoints():
            address = listener.advertised or each
            found[listener.name] = address if address.port else address._replace(port=each.port)
        return found

    def endpoint(self) -> Endpoint:
        """Return the address of the first listener."""
        return self.endpoints()[0][1]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept clients until `stop_accepting`, and serve them until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._tasks, self._context = nursery, copy_context()
                self._is_accepting = True
                task_status.started()
                nursery.start_soon(self._reap)
                if self._poller is not None:
                    nursery.start_soon(self._poller.run)
                try:
                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            for listener, each in (*self._sockets, *self._bootstrap):
                                accepting.start_soon(self._accept_all, listener, each, nursery)
                finally:  # after a cancellation too: reject `connect_in_process`
                    self._is_accepting = False
                close_all(self._sockets)
                close_all(self._bootstrap)
        finally:
            for connection in tuple(self.connections):
                if connection.is_idle:
                    connection.end()
                    self._forget(connection)
            if self._poller is not None:
                self._poller.close()

    @property
    def is_accepting(self) -> bool:
        """True if clients can connect."""
        return self._is_accepting

    def stop_accepting(self) -> None:
        """Stop accepting clients. Open connections stay open."""
        self._is_accepting = False
        self._accepting.cancel()

    def connect_in_process(
        self, local: Endpoint, name: str | None = None, client: Client | None = None
    ) -> trio.SocketStream:
        """Connect from inside this process, without TLS and authentication.

        Args:
            local: Address that the connection counts as connected to.
            name: Name of the listener; None for the first one.
            client: Client on whose behalf this process sends requests; its ACLs and quotas apply.
                None for this process itself, which has all permissions.

        Raises:
            OSError: The server accepts no clients.
        """
        if not self._is_accepting or self._tasks is None:
            raise ConnectionRefusedError(f"the broker accepts no connections at {local}")
        ours, theirs = socket.socketpair()
        listener = next(each for each, _ in self._sockets if name in (None, each.name))
        host = LOOPBACK[0] if client is None else client.host
        peer = Peer(host, local, listener.name, listener.advertised)
        peer.client = IN_PROCESS_CLIENT if client is None else client
        # In the server's context, not the caller's: log lines go where those of other clients go.
        self._context.run(self._tasks.start_soon, self._serve_in_process, peer, theirs)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    async def _serve_in_process(self, peer: Peer, connected: socket.socket) -> None:
        async def transport() -> Transport:
            return PlainTransport(connected, self._poller, self._node.context.disk_reads)

        is_served = False
        try:
            is_served = await self.serve(peer, transport)
        finally:
            if not is_served:
                connected.close()

    async def drain(self) -> None:
        """Wait until all pending responses are sent."""
        # There is no single event for all connections.
        while any(each.owes_replies for each in self.connections):  # noqa: ASYNC110
            await trio.sleep(DRAIN_SECONDS)

    def close_after_fork(self) -> None:
        """Close the listening sockets in a forked child, which accepts no connections."""
        for _, each in (*self._sockets, *self._bootstrap):
            each.close()

    def close_connections(self) -> None:
        """Close all connections at once, and drop pending requests."""
        for connection in tuple(self.connections):
            connection.abort()

    def reset_connections(self) -> None:
        """Reset all connections as after a kill of the process. Unsent bytes are dropped."""
        self._is_accepting = False
        for connection in tuple(self.connections):
            connection.reset()

    async def _accept_all(
        self, listener: Listener, listening: socket.socket, serving: trio.Nursery
    ) -> None:
        """Accept clients, one per event-loop iteration, until the socket is closed."""
        own_port = next(at.port for each, at in self.endpoints() if each.name == listener.name)
        while listening.fileno() >= 0:
            try:
                await trio.lowlevel.wait_readable(listening)
                connected, address = listening.accept()
            except trio.ClosedResourceError:
                return
            except (BlockingIOError, ConnectionError):
                continue  # the client has disconnected already
            except OSError as error:  # the process or the system has no file descriptors left
                message = f"cannot accept connections: {error}"
                if self._node.context.error_log.is_new(message):
                    logger.error("%s", message)
                await trio.sleep(ACCEPT_PAUSE_SECONDS)
            else:
                serving.start_soon(self._serve, listener, own_port, connected, *address[:2])

    async def _serve(
        self, listener: Listener, own_port: int, connected: socket.socket, host: str, port: int
    ) -> None:
        is_served = False
        try:
            # Not the port of the socket: at the bootstrap port, clients may reach another node.
            local = Endpoint(connected.getsockname()[0], own_port)
            login = None if listener.security is None else listener.security.login()
            peer = Peer(host, local, listener.name, listener.advertised, login, port)
            is_served = await self.serve(peer, partial(self._transport, listener, connected, peer))
        finally:
            if not is_served:
                connected.close()

    async def _transport(
        self, listener: Listener, connected: socket.socket, peer: Peer
    ) -> Transport | None:
        """Return the transport of a client, or None if the TLS handshake failed."""
        plain = PlainTransport(connected, self._poller, self._node.context.disk_reads)
        security = listener.security
        if security is None or security.certificates is None:
            return plain
        from .tls_transport import TlsTransport  # imported here: most nodes do not use TLS

        try:
            transport = TlsTransport(
                plain, security.certificates.context(), self._node.context.disk_reads
            )
            await self._handshakes.perform(transport)
            if transport.requested_host:
                peer.set_sni_host(transport.requested_host)
            if peer.login is None:
                peer.set_principal(security.principal_of(transport.certificate))
                if peer.client.principal != ANONYMOUS:
                    self._node.audit.log_authentication(peer.client, listener.name, CERTIFICATE)
        except BaseException as error:
            plain.close()
            if isinstance(error, MemoryError):
                self._node.context.error_log.memory_errors.record()
            elif not isinstance(error, OSError | trio.TooSlowError | AuthenticationError):
                raise
            self._log_handshake_error(listener, peer.host, error)
            return None
        return transport

    def _log_handshake_error(self, listener: Listener, host: str, error: BaseException) -> None:
        slow = isinstance(error, trio.TooSlowError)
        if isinstance(error, AuthenticationError):
            self._node.audit.log_authentication_failure(
                host, listener.name, CERTIFICATE, "", str(error)
            )
        detail = str(error) if isinstance(error, AuthenticationError) else repr(error)
        reason = "timed out" if slow else getattr(error, "reason", None) or detail
        message = f"TLS handshake with {host} on listener {listener.name} failed: {reason}"
        if self._node.context.error_log.is_new(message):
            logger.info("%s", message)

    async def serve(self, peer: Peer, transport: Callable[[], Awaitable[Transport | None]]) -> bool:
        """Serve one client within the connection limits, until its connection closes or is idle.

        Args:
            peer: The client.
            transport: Creates the transport, or returns None if that failed. Not called for a
                rejected client.

        Returns:
            True if the client has a connection, which then closes the transport.
        """
        if not self._admit(peer.host):
            return False
        # Count the connection from here on, even while it waits because of a rate limit.
        self._open += 1
        self._per_host[peer.host] += 1
        connection = None
        try:
            connection = await self._open_connection(peer, transport)
        finally:
            if connection is None:
                self._release_slot(peer.host)
        if connection is None:
            return False
        if not connection.watch_idle(self._start_serving):
            await self._serve_connection(connection)
        return True

    async def _open_connection(
        self, peer: Peer, transport: Callable[[], Awaitable[Transport | None]]
    ) -> Connection | None:
        """Create the connection of an admitted client within the rate limits, or return None."""
        self._warn_about_loopback_address(peer)
        accept_at = self._next_accept_time(peer.listener)
        if accept_at > trio.current_time():
            await trio.sleep_until(accept_at)
        if self._quotas.of_addresses is not None and await self._is_throttled_host(peer.host):
            return None
        opened = await transport()
        if opened is None:
            return None
        connection = Connection(
            self._node,
            self._apis,
            opened,
            peer,
            frame_bytes_max=self._node.config.request_max_bytes,
            intercept=self._intercept,
        )
        self.connections.add(connection)
        return connection

    def _start_serving(self, connection: Connection) -> None:
        """Start a task for a connection that is no longer idle."""
        assert self._tasks is not None
        self._tasks.start_soon(self._serve_connection, connection)

    async def _serve_connection(self, connection: Connection) -> None:
        is_idle = False
        try:
            is_idle = await connection.serve()
        finally:
            if not is_idle:
                self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._release_slot(connection.peer.host)

    def _release_slot(self, host: str) -> None:
        self._open -= 1
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def _admit(self, host: str) -> bool:
        config = self._node.config
        if self._open >= config.max_connections:
            logger.warning("rejecting %s: the limit of max.connections is reached", host)
            return False
        if self._open >= self._connections_max:
            if self._node.context.error_log.is_new("out of descriptors"):
                logger.warning(
                    "rejecting %s and other clients: %d connections are open, and the remaining file "
                    "descriptors are reserved for logs; raise the limit of open files (ulimit -n)",
                    host,
                    self._open,
                )
            return False
        limit = config.connections_max_from(host)
        if self._per_host[host] >= limit:
            logger.warning(
                "rejecting %s: it has %d open connections (max.connections.per.ip)", host, limit
            )
            return False
        return True

    def _warn_about_loopback_address(self, peer: Peer) -> None:
        """Warn if a client on another machine gets an advertised loopback address."""
        host = peer.advertised.host if peer.advertised else ""
        if host in LOOPBACK_NAMES and peer.host not in LOOPBACK_NAMES:
            message = (
                f"clients on {peer.host} cannot use the advertised address {peer.advertised}, which "
                "is a loopback address; set --advertise to an address that they can reach"
            )
            if self._node.context.error_log.is_new(message):
                logger.warning("%s", message)

    def _next_accept_time(self, listener: str) -> float:
        """Return the time at which the next connection may be served.

        `max.connection.creation.rate` limits the connections per second. Bursts up to one second's
        worth are allowed; further connections are delayed, not rejected. A listener may have its
        own rate within that of the node (KIP-612).
        """
        config = self._node.config
        accept_at = self._reserve_accept_time(ALL_LISTENERS, config.max_connection_creation_rate)
        if config.has_listener_override(listener, CREATION_RATE):
            own = int(config.lookup_for_listener(listener)(CREATION_RATE))
            accept_at = max(accept_at, self._reserve_accept_time(listener, own))
        return accept_at

    def _reserve_accept_time(self, listener: str, rate: int) -> float:
        now = trio.current_time()
        next_accept = max(self._next_accept.get(listener, 0.0) + 1 / max(rate, 1), now - 1)
        self._next_accept[listener] = next_accept
        return max(next_accept, now)

    async def _is_throttled_host(self, host: str) -> bool:
        """Delay a connection above its IP address's creation rate, and return True to close it.

        The delay keeps the client from reconnecting at once, as in Kafka (KIP-612).
        """
        seconds = self._node.quota_manager.connection_wait_seconds(host)
        if not seconds:
            return False
        logger.debug(
            "%s exceeds its connection rate; closing the connection in %.1f s", host, seconds
        )
        await trio.sleep(seconds)
        return True

    async def _reap(self) -> None:
        """Close overdue connections, and end the tasks of idle connections; see `Connection`."""
        first_seconds = self._node.config.connection_setup_timeout_ms / 1000
        idle_ms = self._node.config.connections_max_idle_ms
        idle_seconds = idle_ms / 1000 if idle_ms >= 0 else math.inf
        while True:
            checked_at = trio.current_time()
            await trio.sleep(REAP_SECONDS)
            now = trio.current_time()
            delay = now - checked_at if now - checked_at > DELAYED_REAP_SECONDS else 0.0
            self._handshakes.cancel_overdue(now, first_seconds, delay)
            closed = 0
            for number, connection in enumerate(tuple(self.connections), 1):
                if delay:
                    connection.excuse(delay, now)
                if connection.is_overdue(now, first_seconds, idle_seconds):
                    connection.close()
                    closed += 1
                else:
                    connection.suspend_if_idle(now)
                if number % CHECKED_AT_ONCE == 0 or closed == CLOSED_AT_ONCE:
                    closed = 0
                    await trio.lowlevel.checkpoint()
