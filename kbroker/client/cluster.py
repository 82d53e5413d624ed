"""A cluster as a client sees it: which brokers there are, and which one a request belongs to."""

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
    CannotConnect,
    ClientError,
    NoSuchTopic,
    NotReachable,
    check,
    error_code,
    first_error,
)

HELLO_SECONDS = 5
"""How long a broker may take to say what it speaks: a port can accept and never answer."""
# Pause before a request is sent again.
RETRY_BACKOFF_SECONDS = 0.1
COORDINATOR_SECONDS = 15
"""How long a cluster may take to make its first group coordinator."""
COORDINATOR_VERSION_MIN = 4
GROUP, TRANSACTION = 0, 1
"""What a coordinator is asked for."""
METADATA_VERSION_MIN = 10

LogIn: TypeAlias = Callable[[Connection, Endpoint], Awaitable[None]]
"""Shows who asks on a new connection, which leads to that address. Raises OSError."""


class ClusterClient:
    """Connections to the brokers of one cluster, opened when they are needed.

    Get one from `open_cluster`. Several tasks may use it; one that waits long for its answers
    takes a connection of its own with `dial`.
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
        """`log_in` takes the place of a login by what `security` has."""
        self.bootstrap = list(bootstrap)
        self._direct = direct
        self._security = security
        self._dial = dial
        self._log_in = log_in or self._log_in_by_security
        self.client_id = client_id
        self._any: Connection | None = None
        self._nodes: dict[int, Connection] = {}
        self._open: list[Connection] = []
        self._dialling = trio.Lock()
        self.endpoints: dict[int, Endpoint] = {}
        """Where each broker says it is, as of the last metadata."""

    @property
    def address(self) -> str:
        """What the user named."""
        return ",".join(map(str, self.bootstrap))

    # -- connections

    async def any(self) -> Connection:
        """A connection to the first bootstrap address that answers. Raises CannotConnect."""
        async with self._dialling:
            if self._any is None or self._any.broken:
                await self._close_broken(self._any)
                self._any = await self._first_that_answers(self._connect)
                self._any.replacement = self.any
            return self._any

    async def _first_that_answers(
        self, connect: Callable[[Endpoint], Awaitable[Connection]]
    ) -> Connection:
        reasons = []
        for endpoint in self.bootstrap:
            try:
                return await connect(endpoint)
            except (OSError, DecodeError) as error:
                reasons.append(f"{endpoint} {_reason(error)}")
        raise CannotConnect("; ".join(reasons))

    async def _connect(self, endpoint: Endpoint) -> Connection:
        connection = await self._negotiated(endpoint)
        await self._log_in(connection, endpoint)
        return connection

    async def _negotiated(self, endpoint: Endpoint) -> Connection:
        """A connection that knows the broker's versions, before anybody has logged in."""
        connection = await open_connection(
            *endpoint, self.client_id, tls=self._security.tls, dial=self._dial
        )
        self._open.append(connection)
        with trio.move_on_after(HELLO_SECONDS):
            try:
                await connection.negotiate()
            except ConnectionResetError:
                if self._security.tls is None:
                    hint = "if it speaks TLS, set security.protocol=SSL"
                    raise OSError(f"ends the connection without an answer ({hint})") from None
                raise
        if not connection.versions:
            raise OSError("accepts connections but does not answer")
        return connection

    async def _log_in_by_security(self, connection: Connection, _: Endpoint) -> None:
        if self._security.credentials is not None:
            from .security import log_in

            await log_in(connection, self._security.credentials)

    async def login_mechanisms(self) -> list[str] | None:
        """Return the SASL mechanisms of the listener that this client uses.

        Returns:
            Their names, or None if clients do not log in there.

        Raises:
            CannotConnect: No broker answers.
            OSError: The broker has ended the connection.
        """
        if self._security.credentials is None:
            return None
        from kbroker.protocol.messages.security import SaslHandshakeRequest

        connection = await self._first_that_answers(self._negotiated)
        mechanism = self._security.credentials.mechanism
        answer = await connection.ask(SaslHandshakeRequest(mechanism=mechanism), oldest=1)
        return list(answer.mechanisms)

    async def node(self, node_id: int) -> Connection:
        """The connection to a broker, at the address that it advertises.

        Raises NotReachable, and ClientError for a broker that the metadata does not name.
        """
        if node_id not in self.endpoints:
            await self.metadata([])
        async with self._dialling:
            known = self._nodes.get(node_id)
            if known is None or known.broken:
                await self._close_broken(known)
                known = self._nodes[node_id] = await self.dial(node_id)
                known.replacement = partial(self.node, node_id)
            return known

    async def _close_broken(self, connection: Connection | None) -> None:
        if connection is not None and connection in self._open:
            self._open.remove(connection)
            await connection.aclose()

    async def dial(self, node_id: int) -> Connection:
        """One more connection to a broker. Raises as `node`."""
        endpoint = self.bootstrap[0] if self._direct else self.endpoints.get(node_id)
        if endpoint is None:
            known = ", ".join(map(str, sorted(self.endpoints))) or "none"
            raise ClientError(f"there is no broker {node_id} now; there are: {known}")
        try:
            return await self._connect(endpoint)
        except (OSError, DecodeError) as error:
            raise NotReachable(node_id, endpoint, _reason(error)) from error

    def forget(self, connection: Connection) -> None:
        """A connection of `dial` is closed."""
        self._open.remove(connection)

    def look_anew(self, bootstrap: Sequence[Endpoint]) -> None:
        """Forget what is known of the cluster, which is behind other addresses now.

        Requests that are on their way come to their ends.
        """
        self.bootstrap = list(bootstrap)
        self._any = None
        self._nodes.clear()
        self.endpoints.clear()

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in self._open:
            await connection.aclose()

    # -- who is who

    async def metadata(self, names: Iterable[str] | None = None) -> MetadataResponse:
        """Brokers, and the named topics (None: all of them). No topic is created by asking."""
        rows = None if names is None else [MetadataRequest.Topic(name=name) for name in names]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=False)
        connection = await self.any()
        answer: MetadataResponse = await connection.ask(request, oldest=METADATA_VERSION_MIN)
        check(answer.error_code)
        self.endpoints = {row.node_id: Endpoint(row.host, row.port) for row in answer.brokers}
        return answer

    async def controller(self) -> Connection:
        """The broker that changes topics."""
        answer = await self.metadata([])
        return await self.node(answer.controller_id)

    async def topics(self, names: Sequence[str]) -> list[MetadataResponse.Topic]:
        """The metadata of topics in the order of their names.

        Raises NoSuchTopic, which names the one that was probably meant; KafkaError for topics that
        may not be seen.
        """
        answer = await self.metadata(names)
        found = {row.name: row for row in answer.topics}
        for name in names:
            code = error_code(found[name].error_code)
            if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                raise NoSuchTopic(await self._no_such_topic(name))
            if code != ErrorCode.LEADER_NOT_AVAILABLE:
                check(code, name)
        return [found[name] for name in names]

    async def _no_such_topic(self, name: str) -> str:
        known = sorted(row.name or "" for row in (await self.metadata()).topics)
        return (
            f"topic {name!r} does not exist at {self.address}{did_you_mean(name, known)} "
            f"`kbroker topic list` shows what there is, `kbroker topic create {name}` makes it"
        )

    async def ask_coordinators(
        self, request: object, *, oldest: int = 0
    ) -> AsyncIterator[tuple[int, Answer]]:
        """Ask every broker about all that it coordinates; yields broker ids and answers.

        A broker that loads it is asked again and again. Raises KafkaError when that takes long.
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
        """The broker that looks after a group. Raises as `coordinator_id`."""
        return await self.node(await self.coordinator_id(key, key_type))

    async def coordinator_id(self, key: str, key_type: int = GROUP) -> int:
        """The number of the broker that looks after a group, or a `TRANSACTION` by its id.

        Raises KafkaError when there is none for long.
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
    """A client of the cluster behind any of these addresses. Connects when first asked.

    With `direct` the one broker is reached at its bootstrap address, whatever it advertises;
    `security` is how connections are encrypted, and who logs in; `dial` makes them.
    """
    cluster = ClusterClient(bootstrap, client_id, direct=direct, security=security, dial=dial)
    try:
        yield cluster
    finally:
        with trio.CancelScope(shield=True):
            await cluster.aclose()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: a question for the likeliest of `known`, or a full stop."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def _reason(error: Exception) -> str:
    """Why a connection failed, in few words; the first cause, not the wrapping of it."""
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
