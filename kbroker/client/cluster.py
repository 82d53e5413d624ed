"""Client of one cluster: broker discovery, connections and request routing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import trio

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.primitives import DecodeError

from .connection import CLIENT_ID, Answer, Connection, Dial, dial_tcp, open_connection
from .credentials import OPEN, Security
from .endpoint import Endpoint
from .errors import (
    CLOSED_WITHOUT_TLS,
    CannotConnect,
    ClientError,
    HandshakeFailed,
    LoginRejected,
    NoSuchTopic,
    NotReachable,
    TlsExpected,
    check,
    error_code,
    first_error,
)

# Time limit for ApiVersions on a new connection: a port may accept and never respond.
NEGOTIATION_SECONDS = 5
# Pause before a request is sent again.
RETRY_BACKOFF_SECONDS = 0.1
# Time limit for a cluster to provide a coordinator: the first one creates its topic.
COORDINATOR_SECONDS = 15
COORDINATOR_VERSION_MIN = 4
# Key types of FindCoordinator.
GROUP, TRANSACTION = 0, 1
METADATA_VERSION_MIN = 10

# Authenticates a new connection to the given address. Raises OSError.
LogIn: TypeAlias = Callable[[Connection, Endpoint], Awaitable[None]]


class ClusterClient:
    """Connections to the brokers of one cluster, opened on demand.

    Create it with `open_cluster`. Several tasks may use it. A task that sends long-polling requests
    opens its own connection with `dial`.

    Attributes:
        bootstrap: Addresses used to discover the cluster.
        client_id: Client ID sent with each request.
        endpoints: Advertised address by broker ID, from the latest metadata.
    """

    def __init__(
        self,
        bootstrap: Sequence[Endpoint],
        client_id: str,
        *,
        direct: bool,
        security: Security = OPEN,
        dial: Dial = dial_tcp,
        log_in: LogIn | None = None,
    ) -> None:
        """Initialise the client; `log_in` replaces the authentication that `security` describes."""
        self.bootstrap = list(bootstrap)
        self._direct = direct
        self._security = security
        self._dial = dial
        self._log_in = log_in or self._log_in_by_security
        self.client_id = client_id
        self._any: Connection | None = None
        self._nodes: dict[int, Connection] = {}
        self._open: set[Connection] = set()
        # Connections of earlier bootstrap addresses, which are closed when they are idle.
        self._discarded: set[Connection] = set()
        self._dialling = trio.Lock()
        self.endpoints: dict[int, Endpoint] = {}

    @property
    def address(self) -> str:
        """The bootstrap addresses as the user wrote them."""
        return ",".join(map(str, self.bootstrap))

    # -- connections

    async def any(self) -> Connection:
        """Return a connection to the first bootstrap address that responds.

        Raises:
            CannotConnect: No bootstrap address responds.
        """
        async with self._dialling:
            while self._any is None or self._any.broken:
                await self._close_unused(self._any)
                dialled = await self._unless_reset(partial(self._first_reachable, self._connect))
                if dialled is not None:
                    self._any = dialled
                    dialled.replacement = self.any
            return self._any

    async def _unless_reset(self, dial: Callable[[], Awaitable[Connection]]) -> Connection | None:
        """Open a connection; return None if the bootstrap addresses were replaced concurrently.

        The addresses that `dial` has used may then belong to brokers that no longer exist.

        Raises:
            ClientError: The connection fails.
        """
        bootstrap = self.bootstrap
        try:
            connection = await dial()
        except (CannotConnect, NotReachable):
            if self.bootstrap is bootstrap:
                raise
            return None
        if self.bootstrap is bootstrap:
            return connection
        await _close(connection)
        return None

    async def _first_reachable(
        self, connect: Callable[[Endpoint], Awaitable[Connection]]
    ) -> Connection:
        reasons, is_rejected, is_handshake = [], False, False
        for endpoint in self.bootstrap:
            try:
                return await connect(endpoint)
            except LoginRejected as error:
                reasons.append(f"{endpoint}: {error}")
                is_rejected = True
            except HandshakeFailed as error:
                reasons.append(str(error))
                is_handshake = True
            except TlsExpected as error:
                reasons.append(f"{endpoint} {error}")
                is_handshake = True
            except (OSError, DecodeError) as error:
                reasons.append(f"{endpoint} {_reason(error)}")
        raise CannotConnect("; ".join(reasons), is_rejected=is_rejected, is_handshake=is_handshake)

    async def _connect(self, endpoint: Endpoint) -> Connection:
        connection = await self._open_negotiated(endpoint)
        try:
            await self._log_in(connection, endpoint)
        except BaseException:
            await _close(connection)
            raise
        return connection

    async def _open_negotiated(self, endpoint: Endpoint) -> Connection:
        """Return a connection that knows the broker's API versions, not yet authenticated."""
        connection = await open_connection(
            *endpoint, self.client_id, tls=self._security.tls, dial=self._dial
        )
        self._open.add(connection)
        connection.on_close = self._open.discard
        try:
            await self._negotiate(connection)
        except BaseException:
            await _close(connection)
            raise
        return connection

    async def _negotiate(self, connection: Connection) -> None:
        with trio.move_on_after(NEGOTIATION_SECONDS):
            try:
                await connection.negotiate()
            except ConnectionResetError:
                if self._security.tls is None:
                    raise TlsExpected(CLOSED_WITHOUT_TLS) from None
                raise
        if not connection.versions:
            raise OSError("accepts connections but does not respond")

    async def _log_in_by_security(self, connection: Connection, _: Endpoint) -> None:
        if self._security.credentials is not None:
            from .security import log_in

            await log_in(connection, self._security.credentials)

    async def login_mechanisms(self) -> list[str] | None:
        """Return the SASL mechanisms of the listener that this client uses.

        Returns:
            The mechanism names, or None if this client does not use SASL.

        Raises:
            CannotConnect: No bootstrap address responds.
            OSError: The broker closed the connection.
        """
        if self._security.credentials is None:
            return None
        from kbroker.protocol.messages.security import SaslHandshakeRequest

        connection = await self._first_reachable(self._open_negotiated)
        mechanism = self._security.credentials.mechanism
        try:
            answer = await connection.ask(SaslHandshakeRequest(mechanism=mechanism), oldest=1)
        finally:
            await _close(connection)
        return list(answer.mechanisms)

    async def node(self, node_id: int) -> Connection:
        """Return the shared connection to a broker at its advertised address.

        Args:
            node_id: Broker ID.

        Raises:
            NotReachable: The advertised address does not work.
            ClientError: The metadata does not list the broker.
        """
        while True:
            bootstrap = self.bootstrap
            await self._find_endpoint(node_id)
            async with self._dialling:
                known = self._nodes.get(node_id)
                if known is not None and not known.broken:
                    return known
                await self._close_unused(known)
                if self.bootstrap is not bootstrap:
                    continue  # the endpoint may be that of an earlier broker, or forgotten
                dialled = await self._unless_reset(partial(self._dial_known, node_id))
                if dialled is not None:
                    self._nodes[node_id] = dialled
                    dialled.replacement = partial(self.node, node_id)
                    return dialled

    async def _find_endpoint(self, node_id: int) -> None:
        """Request metadata unless it is known; again if the bootstrap addresses were replaced."""
        while node_id not in self.endpoints:
            bootstrap = self.bootstrap
            await self.metadata([])
            if self.bootstrap is bootstrap:
                return

    async def _close_unused(self, broken: Connection | None) -> None:
        """Close a broken connection, and the idle connections of earlier bootstrap addresses."""
        idle = {each for each in self._discarded if each.is_idle}
        self._discarded -= idle
        for each in idle if broken is None else {broken, *idle}:
            await _close(each)

    async def dial(self, node_id: int) -> Connection:
        """Open another connection to a broker; the caller closes it.

        Args:
            node_id: Broker ID.

        Raises:
            NotReachable: The advertised address does not work.
            ClientError: The metadata does not list the broker.
        """
        await self._find_endpoint(node_id)
        return await self._dial_known(node_id)

    async def _dial_known(self, node_id: int) -> Connection:
        endpoint = self.bootstrap[0] if self._direct else self.endpoints.get(node_id)
        if endpoint is None:
            known = ", ".join(map(str, sorted(self.endpoints))) or "none"
            raise ClientError(f"broker {node_id} does not exist (valid: {known})")
        try:
            return await self._connect(endpoint)
        except (OSError, DecodeError) as error:
            raise NotReachable(node_id, endpoint, _reason(error)) from error

    def reset_bootstrap(self, bootstrap: Sequence[Endpoint]) -> None:
        """Replace the bootstrap addresses and discard all cached connections and metadata.

        Requests in flight on old connections still complete. Idle old connections are closed before
        the next connection is opened.

        Args:
            bootstrap: The new addresses.
        """
        self.bootstrap = list(bootstrap)
        if self._any is not None:
            self._discarded.add(self._any)
        self._discarded.update(self._nodes.values())
        self._any = None
        self._nodes.clear()
        self.endpoints.clear()

    async def aclose(self) -> None:
        """Close all connections."""
        while self._open:
            await _close(next(iter(self._open)))

    # -- metadata and coordinators

    async def metadata(self, names: Iterable[str] | None = None) -> MetadataResponse:
        """Return the brokers and topics of the cluster; never auto-create a topic.

        Args:
            names: Topics to describe, or None for all.

        Raises:
            KafkaError: The broker rejects the request.
        """
        rows = None if names is None else [MetadataRequest.Topic(name=name) for name in names]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=False)
        bootstrap = self.bootstrap
        connection = await self.any()
        answer: MetadataResponse = await connection.ask(request, oldest=METADATA_VERSION_MIN)
        check(answer.error_code)
        if self.bootstrap is not bootstrap:
            return answer  # it may come from an earlier bootstrap address
        self.endpoints = {row.node_id: Endpoint(row.host, row.port) for row in answer.brokers}
        return answer

    async def controller(self) -> Connection:
        """Return a connection to the controller."""
        answer = await self.metadata([])
        return await self.node(answer.controller_id)

    async def topics(self, names: Sequence[str]) -> list[MetadataResponse.Topic]:
        """Return the metadata of topics, in the order of `names`.

        Args:
            names: Topic names.

        Raises:
            NoSuchTopic: A topic does not exist. The message suggests a similar name.
            KafkaError: The user may not describe a topic.
        """
        answer = await self.metadata(names)
        found = {row.name: row for row in answer.topics}
        for name in names:
            code = error_code(found[name].error_code)
            if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                raise await self._no_such_topic(name)
            if code != ErrorCode.LEADER_NOT_AVAILABLE:
                check(code, name)
        return [found[name] for name in names]

    async def _no_such_topic(self, name: str) -> NoSuchTopic:
        known = sorted(row.name or "" for row in (await self.metadata()).topics)
        return NoSuchTopic(
            f"topic {name!r} does not exist at {self.address}{did_you_mean(name, known)}",
            hint=f"list topics with `kbroker topic list`, create it with `kbroker topic create {name}`",
        )

    async def ask_coordinators(
        self, request: object, *, oldest: int = 0
    ) -> AsyncIterator[tuple[int, Answer]]:
        """Send a request to every broker; yield broker IDs and responses.

        A broker that is still loading its coordinator state is retried for `COORDINATOR_SECONDS`.

        Args:
            request: Request about everything that a broker coordinates, such as ListGroups.
            oldest: Lowest acceptable API version.

        Raises:
            KafkaError: A broker reports an error, or is still loading at the deadline.
        """
        for node_id in sorted(row.node_id for row in (await self.metadata([])).brokers):
            deadline = trio.current_time() + COORDINATOR_SECONDS
            while True:
                answer = await (await self.node(node_id)).ask(request, oldest=oldest)
                is_loading = answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if not is_loading or trio.current_time() > deadline:
                    break
                await trio.sleep(RETRY_BACKOFF_SECONDS)
            check(answer.error_code)
            yield node_id, answer

    async def coordinator(self, key: str, key_type: int = GROUP) -> Connection:
        """Return a connection to a coordinator.

        Args:
            key: Group ID or transactional ID.
            key_type: `GROUP` or `TRANSACTION`.

        Raises:
            KafkaError: No coordinator is available within `COORDINATOR_SECONDS`.
        """
        return await self.node(await self.coordinator_id(key, key_type))

    async def coordinator_id(self, key: str, key_type: int = GROUP) -> int:
        """Return the broker ID of a coordinator.

        Args:
            key: Group ID or transactional ID.
            key_type: `GROUP` or `TRANSACTION`.

        Raises:
            KafkaError: No coordinator is available within `COORDINATOR_SECONDS`.
        """
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
        deadline = trio.current_time() + COORDINATOR_SECONDS
        while True:
            connection = await self.any()
            answer = await connection.ask(request, oldest=COORDINATOR_VERSION_MIN)
            (row,) = answer.coordinators
            if not row.error_code:
                self.endpoints[row.node_id] = Endpoint(row.host, row.port)
                return int(row.node_id)
            code = error_code(row.error_code)
            if not code.retriable or trio.current_time() > deadline:
                raise KafkaError(code, row.error_message)
            await trio.sleep(RETRY_BACKOFF_SECONDS)


@asynccontextmanager
async def open_cluster(
    bootstrap: Sequence[Endpoint],
    client_id: str = CLIENT_ID,
    *,
    direct: bool = False,
    security: Security = OPEN,
    dial: Dial = dial_tcp,
) -> AsyncIterator[ClusterClient]:
    """Yield a client of the cluster at these addresses; it connects on the first request.

    Args:
        bootstrap: Addresses to try in order.
        client_id: Client ID sent with each request.
        direct: Always use the first bootstrap address instead of the advertised one.
        security: TLS context and credentials.
        dial: Opens the transport stream.
    """
    cluster = ClusterClient(bootstrap, client_id, direct=direct, security=security, dial=dial)
    try:
        yield cluster
    finally:
        with trio.CancelScope(shield=True):
            await cluster.aclose()


async def _close(connection: Connection) -> None:
    """Close a connection, even if the current task is cancelled."""
    with trio.CancelScope(shield=True):
        await connection.aclose()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: a suggestion from `known`, or nothing if none is similar."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _reason(error: Exception) -> str:
    """Return the root cause of a connection failure in a few words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = first_error(cause)
        elif isinstance(cause, ConnectionRefusedError):
            return "refuses the connection"
        elif cause.__cause__ is None:
            break
        else:
            cause = cause.__cause__
    if isinstance(cause, DecodeError):
        return "does not speak Kafka's protocol"
    return str(getattr(cause, "strerror", None) or cause)
