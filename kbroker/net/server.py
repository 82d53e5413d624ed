"""The only module that opens Kafka listeners."""

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
from kbroker.runtime.time_slices import StepThrottle
from kbroker.security.acls import IN_PROCESS_CLIENT, Client
from kbroker.security.errors import AuthenticationError
from kbroker.security.principals import ANONYMOUS

from .connection import Connection, Intercept
from .readiness_poller import HAS_EPOLL, ReadinessPoller
from .transport import PlainTransport, Transport

if TYPE_CHECKING:
    from kbroker.security.tls import Certificates
    from kbroker.security.users import Users

logger = logging.getLogger(__name__)
CERTIFICATE = "certificate"
"""How clients show who they are that do not log in, as the audit log names it."""

LOOPBACK = ("127.0.0.1", "::1")
LOOPBACK_NAMES = ("localhost", *LOOPBACK)
_SOCKET_HOSTS = {
    "": ("0.0.0.0", "::"),
    "0.0.0.0": ("0.0.0.0", "::"),
    "::": ("::", "0.0.0.0"),
    "localhost": LOOPBACK,
}
"""Hosts of listeners with a socket of each family. Java listens so on the first three."""
BIND_TRIES = 20
FIRST_PORT, LAST_PORT = 14_000, 32_768
"""Where a free port is looked for. What systems give to whoever connects begins at the second one, or
above."""
REAP_SECONDS = 0.5
DRAIN_SECONDS = 0.005
ACCEPT_SECONDS = 0.1
"""How long nobody is let in after there was no room for more."""
CREATION_RATE = "max.connection.creation.rate"
ALL_LISTENERS = ""
_SHARING = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
"""An address can be taken again while connections of an earlier run come to their ends; Windows
allows that anyway, and has another option so that nobody else takes it as well."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An address that clients connect to. Port 0 is a free port. If `advertised` is None, the node
    advertises the address that the client used. If `security` is None, clients connect without TLS
    and authentication.
    """

    name: str
    host: str
    port: int
    advertised: Endpoint | None = None
    security: ListenerSecurity | None = None

    @property
    def address(self) -> str:
        """The listener as `listeners` names it."""
        return f"{self.name}://{Endpoint(self.host, self.port)}"

    def overlaps(self, other: Listener) -> bool:
        """Return True if both listeners would take the same port of the same address."""
        if self.port != other.port or not self.port:
            return False
        if self.host in EVERY_INTERFACE or other.host in EVERY_INTERFACE:
            return True
        return not set(_socket_hosts(self.host)).isdisjoint(_socket_hosts(other.host))

    @property
    def certificates(self) -> Certificates | None:
        """With them it speaks TLS."""
        return None if self.security is None else self.security.certificates

    @property
    def users(self) -> Users | None:
        """With them clients log in."""
        return None if self.security is None else self.security.users

    @property
    def requires_client_certificate(self) -> bool:
        """Return True if clients must authenticate."""
        return self.security is not None and self.security.requires_client_certificate


class CannotListen(Exception):
    """A listener's address cannot be bound; the message says what to do."""


Bound = list[tuple[Listener, socket.socket]]


async def bind_all(listeners: Sequence[Listener]) -> Bound:
    """Take the addresses of all listeners, or none; nobody can connect before `listen_all`.

    Raises CannotListen.
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
    """Let clients connect; they wait until somebody accepts them. Raises CannotListen."""
    for listener, each in bound:
        try:
            each.listen(backlog)
        except OSError as error:  # somebody else took the same address, and was faster
            raise _cannot_listen(listener, each.getsockname()[1], error) from None


def close_all(bound: Bound) -> None:
    """Close the sockets of listeners, and let those know who wait for clients there."""
    for _, each in bound:
        if each.fileno() >= 0:
            trio.lowlevel.notify_closing(each)
            each.close()


async def _bind(listener: Listener) -> list[socket.socket]:
    """Bind the sockets of a listener.

    Raises:
        CannotListen: The address is taken, or is none of this machine.
    """
    if listener.port:
        return await _bind_at(listener, listener.port)
    for _ in range(BIND_TRIES - 1):
        with suppress(CannotListen):
            return await _bind_at(listener, pick_free_port())
    return await _bind_at(listener, pick_free_port())


def pick_free_port() -> int:
    """Return a random port outside the range of ephemeral ports, which may be free.

    The system gives such a port to no outgoing connection while its broker is down. So the broker can
    bind it again, and its clients reach no other process in the meantime. Returns 0 if nearly all ports
    are ephemeral.
    """
    try:
        last = int(
            Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0]
        )
    except OSError:
        last = LAST_PORT
    # Not the generator of the process: tests may have given that a seed.
    return random.SystemRandom().randrange(FIRST_PORT, last) if last > 2 * FIRST_PORT else 0


async def _bind_at(listener: Listener, port: int) -> list[socket.socket]:
    """Bind one port on all addresses of the listener's host."""
    try:
        return await bind_host(listener.host, port, named=bool(listener.port))
    except OSError as error:
        raise _cannot_listen(listener, port, error) from None


async def bind_host(host: str, port: int, *, named: bool) -> list[socket.socket]:
    """Bind one port on all IPv4 and IPv6 addresses of a host.

    Args:
        host: An address or a name; "", 0.0.0.0 and :: are every interface.
        port: The port; 0 is a free one, the same for all addresses.
        named: Whether the port was asked for. If not, it is not shared with anybody who has just
            taken it as well.

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
        # Java takes an IPv4 address that is mapped into IPv6 for the IPv4 address.
        mapped = IPv6Address(host).ipv4_mapped
    except ValueError:
        mapped = None
    return _SOCKET_HOSTS.get(host, (host,)) if mapped is None else (str(mapped),)


def _has_address(host: str) -> bool:
    """Return True if this machine has that address, which one without IPv6 may not."""
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
            each.setsockopt(socket.SOL_SOCKET, _SHARING, 1)
        each.bind(address)
        if not named and _SHARING == socket.SO_REUSEADDR:
            each.setsockopt(socket.SOL_SOCKET, _SHARING, 1)  # for a later start at this port


def _cannot_listen(listener: Listener, port: int, error: OSError) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        return CannotListen(
            f"{listener.address}: port {port} is in use; stop its owner, or choose another one: "
            "--port 0 lets the system choose"
        )
    if error.errno == errno.EACCES:
        return CannotListen(
            f"{listener.address}: no permission to listen on port {port} ({error.strerror}); choose a "
            "port above 1023 with --port, or run as a user that may bind this port"
        )
    return CannotListen(
        f"{listener.address}: cannot listen there ({error.strerror}); name an address of this machine "
        "with --host"
    )


class Server:
    """Accepts clients of one node on its listeners, within the limits of the configuration.

    `bound` are sockets that listen when it is `run`. `intercept` makes the interceptor of
    each connection's requests, for the test kit; `nodes` is how many share the descriptors of this process.
    """

    def __init__(
        self,
        node: Node,
        apis: Mapping[int, Api],
        bound: Bound,
        intercept: Intercept | None = None,
        *,
        nodes: int = 1,
    ) -> None:
        self.connections: set[Connection] = set()
        self._node = node
        self._apis = apis
        self._intercept = intercept
        self._sockets = bound
        self._open = 0
        self._per_host: Counter[str] = Counter()
        self._connections_max = max(shares().connections // nodes, 1)
        self._tasks: trio.Nursery | None = None
        """In which clients are served."""
        self._is_accepting = False
        self._context = copy_context()
        self._next_accept: dict[str, float] = {}
        """By listener, and of all of them."""
        self._quotas = node.cluster.client_quotas
        self._accepting = trio.CancelScope()
        self._handshakes = StepThrottle()
        self._poller = ReadinessPoller() if HAS_EPOLL else None

    def endpoints(self) -> list[tuple[Listener, Endpoint]]:
        """Each listener's address, with the port that the kernel chose."""
        addresses: dict[Listener, Endpoint] = {}
        for listener, each in self._sockets:
            addresses.setdefault(listener, Endpoint(*each.getsockname()[:2]))
        return list(addresses.items())

    def advertised(self) -> dict[str, Endpoint]:
        """Where each listener is reached, by name, if nothing else is known of the client."""
        found = {}
        for listener, each in self.endpoints():
            told = listener.advertised or each
            found[listener.name] = told if told.port else told._replace(port=each.port)
        return found

    def endpoint(self) -> Endpoint:
        """The address of the first listener."""
        return self.endpoints()[0][1]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept until `stop_accepting`; serve until cancelled."""
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
                            for listener, each in self._sockets:
                                accepting.start_soon(self._accept_all, listener, each, nursery)
                finally:  # also when it is cancelled: nobody comes in by `connect_in_process` either
                    self._is_accepting = False
                close_all(self._sockets)
        finally:
            for connection in tuple(self.connections):
                if connection.is_idle:
                    connection.end()
                    self._forget(connection)
            if self._poller is not None:
                self._poller.close()

    @property
    def is_accepting(self) -> bool:
        """Whether clients can connect."""
        return self._is_accepting

    def stop_accepting(self) -> None:
        """Close the door; connections that are open stay open."""
        self._is_accepting = False
        self._accepting.cancel()

    def connect_in_process(
        self, local: Endpoint, name: str | None = None, client: Client | None = None
    ) -> trio.SocketStream:
        """Connect from inside this process, without TLS and a login.

        Args:
            local: Address that the connection counts as having dialled.
            name: Listener by which it counts as having come in. None: the first one.
            client: Authenticated client, with its own address, on whose behalf this process
                asks: its ACLs and quotas apply. None: this process itself, which may do everything.

        Raises:
            OSError: The server accepts no clients.
        """
        if not self._is_accepting or self._tasks is None:
            raise ConnectionRefusedError(f"nobody is served at {local}")
        ours, theirs = socket.socketpair()
        listener = next(each for each, _ in self._sockets if name in (None, each.name))
        host = LOOPBACK[0] if client is None else client.host
        peer = Peer(host, local, listener.name, listener.advertised)
        peer.client = IN_PROCESS_CLIENT if client is None else client
        # In the server's own context, whoever calls: its log lines go where those of all clients go.
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
        """Wait until no client is owed an answer."""
        # There are many connections and no one event to wait for.
        while any(each.owes_replies for each in self.connections):  # noqa: ASYNC110
            await trio.sleep(DRAIN_SECONDS)

    def close_after_fork(self) -> None:
        """Close the listening sockets in a forked child, which accepts no connections."""
        for _, each in self._sockets:
            each.close()

    def close_connections(self) -> None:
        """End all connections at once, whatever they do."""
        for connection in tuple(self.connections):
            connection.abort()

    def reset_connections(self) -> None:
        """End all connections as a process that is killed does: what is not sent yet never is."""
        self._is_accepting = False
        for connection in tuple(self.connections):
            connection.reset()

    async def _accept_all(
        self, listener: Listener, listening: socket.socket, serving: trio.Nursery
    ) -> None:
        """Let clients in, one in each pass of the event loop, until the socket is closed."""
        while listening.fileno() >= 0:
            try:
                await trio.lowlevel.wait_readable(listening)
                connected, address = listening.accept()
            except trio.ClosedResourceError:
                return
            except (BlockingIOError, ConnectionError):
                continue  # who came has gone again
            except OSError as error:  # the process, or the system, has no room for more
                message = f"cannot let clients in: {error}"
                if self._node.context.error_log.is_new(message):
                    logger.error("%s", message)
                await trio.sleep(ACCEPT_SECONDS)
            else:
                serving.start_soon(self._serve, listener, connected, *address[:2])

    async def _serve(
        self, listener: Listener, connected: socket.socket, host: str, port: int
    ) -> None:
        is_served = False
        try:
            local = Endpoint(*connected.getsockname()[:2])
            login = None if listener.security is None else listener.security.login()
            peer = Peer(host, local, listener.name, listener.advertised, login, port)
            is_served = await self.serve(peer, partial(self._transport, listener, connected, peer))
        finally:
            if not is_served:
                connected.close()

    async def _transport(
        self, listener: Listener, connected: socket.socket, peer: Peer
    ) -> Transport | None:
        """What the bytes of a client come through; None when it does not get so far."""
        plain = PlainTransport(connected, self._poller, self._node.context.disk_reads)
        security = listener.security
        if security is None or security.certificates is None:
            return plain
        from .tls_transport import TlsTransport  # most nodes never need it

        try:
            transport = TlsTransport(
                plain, security.certificates.context(), self._node.context.disk_reads
            )
            with trio.fail_after(self._node.config.connection_setup_timeout_ms / 1000):
                await transport.shake_hands(self._handshakes)
            if transport.requested_host:
                peer.set_sni_host(transport.requested_host)
            if peer.login is None:
                peer.set_principal(security.principal_of(transport.certificate))
                if peer.client.principal != ANONYMOUS:
                    self._node.audit.log_authentication(peer.client, listener.name, CERTIFICATE)
        except BaseException as error:
            plain.close()
            if isinstance(error, MemoryError):
                self._node.context.error_log.memory_errors.happened()
            elif not isinstance(error, OSError | trio.TooSlowError | AuthenticationError):
                raise
            self._tell_of_handshake(listener, peer.host, error)
            return None
        return transport

    def _tell_of_handshake(self, listener: Listener, host: str, error: BaseException) -> None:
        slow = isinstance(error, trio.TooSlowError)
        if isinstance(error, AuthenticationError):
            self._node.audit.log_authentication_failure(
                host, listener.name, CERTIFICATE, "", str(error)
            )
        told = str(error) if isinstance(error, AuthenticationError) else repr(error)
        reason = "it took too long" if slow else getattr(error, "reason", None) or told
        message = f"no TLS with {host} on listener {listener.name}: {reason}"
        if self._node.context.error_log.is_new(message):
            logger.info("%s", message)

    async def serve(self, peer: Peer, transport: Callable[[], Awaitable[Transport | None]]) -> bool:
        """Serve one client, if it may come in at all, until its connection ends or rests.

        `transport` makes what its bytes come through, None if that cannot be; a client that may not
        come in needs none. Returns whether it came in: the connection then closes what was made.
        """
        if not self._admit(peer.host):
            return False
        # From here on it counts, also while it waits for its turn.
        self._open += 1
        self._per_host[peer.host] += 1
        connection = None
        try:
            connection = await self._let_in(peer, transport)
        finally:
            if connection is None:
                self._leaves(peer.host)
        if connection is None:
            return False
        if not connection.watch_idle(self._carry_on_soon):
            await self._carry_on(connection)
        return True

    async def _let_in(
        self, peer: Peer, transport: Callable[[], Awaitable[Transport | None]]
    ) -> Connection | None:
        """The connection of a client that has room, when it is its turn; None if it does not get so far."""
        self._warn_of_misleading(peer)
        turn = self._turn(peer.listener)
        if turn > trio.current_time():
            await trio.sleep_until(turn)
        if self._quotas.of_addresses is not None and await self._turned_away(peer.host):
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

    def _carry_on_soon(self, connection: Connection) -> None:
        """A connection has rested, and needs a task now."""
        assert self._tasks is not None
        self._tasks.start_soon(self._carry_on, connection)

    async def _carry_on(self, connection: Connection) -> None:
        rests = False
        try:
            rests = await connection.serve()
        finally:
            if not rests:
                self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._leaves(connection.peer.host)

    def _leaves(self, host: str) -> None:
        self._open -= 1
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def _admit(self, host: str) -> bool:
        config = self._node.config
        if self._open >= config.max_connections:
            logger.warning("refusing %s: max.connections are open", host)
            return False
        if self._open >= self._connections_max:
            if self._node.context.error_log.is_new("out of descriptors"):
                logger.warning(
                    "refusing %s and others: %d connections are open, and what is left of this "
                    "process's descriptors the logs need; raise its limit of open files (ulimit -n)",
                    host,
                    self._open,
                )
            return False
        limit = config.connections_max_from(host)
        if self._per_host[host] >= limit:
            logger.warning(
                "refusing %s: it has %d connections open (max.connections.per.ip)", host, limit
            )
            return False
        return True

    def _warn_of_misleading(self, peer: Peer) -> None:
        """A client on another machine that is told a loopback address will dial itself."""
        told = peer.advertised.host if peer.advertised else ""
        if told in LOOPBACK_NAMES and peer.host not in LOOPBACK_NAMES:
            message = (
                f"clients on {peer.host} are told to connect to {peer.advertised}, which is their "
                "own machine; set --advertise to an address that they can reach"
            )
            if self._node.context.error_log.is_new(message):
                logger.warning("%s", message)

    def _turn(self, listener: str) -> float:
        """When the next connection may be served: max.connection.creation.rate of them a second.

        A second's worth may come at once; what comes faster is held back, not refused. A listener may
        have a rate of its own, within that of the node (KIP-612).
        """
        config = self._node.config
        turn = self._turn_of(ALL_LISTENERS, config.max_connection_creation_rate)
        if config.has_listener_override(listener, CREATION_RATE):
            own = int(config.lookup_for_listener(listener)(CREATION_RATE))
            turn = max(turn, self._turn_of(listener, own))
        return turn

    def _turn_of(self, place: str, rate: int) -> float:
        now = trio.current_time()
        next_accept = max(self._next_accept.get(place, 0.0) + 1 / max(rate, 1), now - 1)
        self._next_accept[place] = next_accept
        return max(next_accept, now)

    async def _turned_away(self, host: str) -> bool:
        """Whether somebody has connected too often: the connection stays for a while, and ends.

        As in Kafka: who connects again and again is not done a favour by more of that (KIP-612).
        """
        seconds = self._node.quota_manager.connection_wait_seconds(host)
        if not seconds:
            return False
        logger.debug("%s connects too often; closing the connection in %.1f s", host, seconds)
        await trio.sleep(seconds)
        return True

    async def _reap(self) -> None:
        """Close connections that are idle for long, or that never sent a whole first request; others that
        have nothing to do rest."""
        first_seconds = self._node.config.connection_setup_timeout_ms / 1000
        idle_ms = self._node.config.connections_max_idle_ms
        idle_seconds = idle_ms / 1000 if idle_ms >= 0 else math.inf
        while True:
            await trio.sleep(REAP_SECONDS)
            now = trio.current_time()
            for connection in tuple(self.connections):
                if connection.is_overdue(now, first_seconds, idle_seconds):
                    connection.close()
                else:
                    connection.suspend_if_idle(now)
