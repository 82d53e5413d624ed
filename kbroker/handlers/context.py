"""The type of handlers, and what they know beside the request: the node and the client."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.client.endpoint import EVERY_INTERFACE, Endpoint
from kbroker.coordinator import ClientInfo
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.schema import Message
from kbroker.runtime.cpu_shares import HeavyClient
from kbroker.security.acls import (
    CLUSTER,
    AclOperation,
    AclResourceType,
    Client,
    Resource,
)
from kbroker.security.audit import NAME_CHARACTERS_MAX, audit_logger
from kbroker.security.principals import ANONYMOUS, Principal
from kbroker.security.rights import MEANT_FOR

if TYPE_CHECKING:
    from kbroker.cluster import Registration
    from kbroker.node.client_quota_manager import QuotaCharge
    from kbroker.node.node import Node
    from kbroker.partitions.waiters import Outcome
    from kbroker.runtime.time_slices import TimeSlice
    from kbroker.security.login import Login

    from .rejected_batches import RejectedBatches

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID
USER = AclResourceType.USER
"""Whom tokens are made for; its name is that of a principal, as ``User:alice`` (KIP-373)."""
OPERATIONS = {
    kind: sum(1 << each for each in MEANT_FOR[kind])
    for kind in (TOPIC, GROUP, AclResourceType.CLUSTER)
}
"""All operations that there are for resources of a type, as bits (KIP-430)."""
_DENIED = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


class Refused(Exception):
    """The client sent what is answered by closing the connection; the message says what."""


class PeerTransport(Protocol):
    """The part of a connection's transport that handlers use."""

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed the connection. Receives nothing."""
        ...


class Peer:
    """The client on the other end of a connection, and the address that it dialled.

    `advertised` is the fixed address of the listener, None where the client is told the address
    that it came in on. `software` is what ApiVersions named (KIP-511), `login` what it has shown of
    itself where it has to log in, `client` who it is, `client_id` what its last request that was looked
    at calls it. `is_gone` is true once the connection has ended; `transport` is that of a connection
    that has not.
    """

    __slots__ = (
        "_when_gone",
        "advertised",
        "client",
        "client_id",
        "heavy_client",
        "host",
        "is_gone",
        "listener",
        "local",
        "login",
        "port",
        "rejected_batches",
        "software",
        "transport",
    )

    def __init__(
        self,
        host: str,
        local: Endpoint,
        listener: str,
        advertised: Endpoint | None,
        login: Login | None = None,
        port: int = 0,
    ) -> None:
        self.host = host
        self.port = port
        self.local = local
        self.listener = listener
        self.advertised = advertised
        self.login = login
        self.client = Client(ANONYMOUS, host)
        self.client_id: str | None = None
        self.software = ""
        self.is_gone = False
        self.transport: PeerTransport | None = None
        self.heavy_client: HeavyClient | None = None
        """Account of the heavy work of this connection, None before the first such work."""
        self.rejected_batches: RejectedBatches | None = None
        """Produced batches behind which no later one of the same producer may be appended."""
        self._when_gone: list[Callable[[], None]] = []

    def when_gone(self, do: Callable[[], None]) -> None:
        """Have something done once the connection has ended."""
        self._when_gone.append(do)

    def leave(self) -> None:
        """The connection has ended."""
        self.is_gone = True
        self.transport = None
        farewells, self._when_gone = self._when_gone, []
        for do in farewells:
            do()

    def has_disconnected(self) -> bool:
        """Return True if the client has closed its connection.

        While a request is handled, the connection receives nothing, so `is_gone` is not set yet.
        """
        return self.is_gone or (self.transport is not None and self.transport.peer_has_closed())

    def set_sni_host(self, host: str) -> None:
        """Advertise the host name of the client's SNI extension to it."""
        self.local = Endpoint(host, self.local.port)

    def set_principal(self, principal: Principal) -> None:
        """Set the principal of the authenticated client."""
        self.client = Client(principal, self.host)


class Handler(Protocol):
    """Serves one API."""

    def __call__(
        self, ctx: Context, request: Message, /
    ) -> Outcome[Message] | Awaitable[Outcome[Message]]:
        """Do the ordered work of a request, such as appending its records.

        Args:
            ctx: The node, the client and the version.
            request: A message of the API's request class.

        Returns:
            The outcome, or an awaitable that completes the ordered work and returns it. The next
            request of the connection is handled after that; see `kbroker.partitions.waiters`.
        """
        ...


class Api(NamedTuple):
    """One served API."""

    key: ApiKey
    versions: range
    handler: Handler
    request_class: type[Message]
    only_looks: bool = False
    """The API has no effect, so a request of a disconnected client is skipped."""


class Context:
    """One request's surroundings.

    `key` is the API's, `version` that of the request and of its response, `rows` how many array elements the request
    has, `quota_charge` what it takes of quotas, None where nobody has one. Who goes over what the request
    names pauses with `time_slice` on the way, because others want their turn as well.
    """

    __slots__ = (
        "apis",
        "client_id",
        "key",
        "node",
        "peer",
        "quota_charge",
        "rows",
        "time_slice",
        "version",
    )

    def __init__(
        self,
        node: Node,
        apis: Mapping[int, Api],
        peer: Peer,
        client_id: str | None,
        key: int,
        version: int,
        time_slice: TimeSlice,
        rows: int,
        quota_charge: QuotaCharge | None = None,
    ) -> None:
        self.node = node
        self.apis = apis
        self.peer = peer
        self.client_id = client_id
        self.key = key
        self.version = version
        self.time_slice = time_slice
        self.rows = rows
        self.quota_charge = quota_charge

    def client_info(self) -> ClientInfo:
        """Who asks, as groups show their members."""
        return ClientInfo(self.client_id or "", "/" + self.peer.host)

    # -- what it may do

    def allows(
        self, operation: AclOperation, resource: Resource, *, is_looked_for: bool = False
    ) -> bool:
        """Whether the client may do something.

        Parameters: `is_looked_for` where the client did not name the resource, and is not told of it
        unless it may know: that is no attempt.
        """
        authorizer = self.node.authorizer
        if authorizer is None:
            return True
        allowed = authorizer.allows(self.peer.client, operation, resource)
        level = logging.DEBUG if allowed or is_looked_for else logging.INFO
        if audit_logger.isEnabledFor(level):
            client = self.peer.client
            verdict = authorizer.verdict(client, operation, resource)
            self.node.audit.decided(
                verdict,
                client,
                operation,
                resource,
                level,
                api=ApiKey(self.key).api_name,
                version=self.version,
                client_id=(self.client_id or "")[:NAME_CHARACTERS_MAX],
            )
        return allowed

    def require(self, operation: AclOperation, resource: Resource) -> None:
        """Raise KafkaError with the code of the resource's type unless the client may do something."""
        if self.node.authorizer is not None and not self.allows(operation, resource):
            raise KafkaError(
                _DENIED[resource.type],
                f"{self.peer.client.principal} may not {operation.name} {resource}",
            )

    def require_topic(self, operation: AclOperation, name: str) -> None:
        """As `require`, of a topic. Raises TOPIC_AUTHORIZATION_FAILED."""
        authorizer = self.node.authorizer
        if authorizer is None or authorizer.has_allowed(self.peer.client, operation, name):
            return
        self.require(operation, Resource(TOPIC, name))

    def require_group(self, operation: AclOperation, group_id: str) -> None:
        """As `require`, of a group. Raises GROUP_AUTHORIZATION_FAILED."""
        if self.node.authorizer is not None:
            self.require(operation, Resource(GROUP, group_id))

    def require_transaction(self, operation: AclOperation, transactional_id: str) -> None:
        """As `require`, of a transactional id. Raises TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
        if self.node.authorizer is not None:
            self.require(operation, Resource(TRANSACTIONAL_ID, transactional_id))

    def require_cluster(self, operation: AclOperation) -> None:
        """As `require`, of the cluster. Raises CLUSTER_AUTHORIZATION_FAILED."""
        if self.node.authorizer is not None:
            self.require(operation, CLUSTER)

    def knows_topic(self, name: str) -> bool:
        """Whether the client may know that there is a topic which it did not name."""
        may = AclOperation.DESCRIBE
        return self.node.authorizer is None or self.allows(
            may, Resource(TOPIC, name), is_looked_for=True
        )

    def knows_group(self, group_id: str) -> bool:
        """As `knows_topic`, of a group."""
        may = AclOperation.DESCRIBE
        return self.node.authorizer is None or self.allows(
            may, Resource(GROUP, group_id), is_looked_for=True
        )

    def operations(self, resource: Resource) -> int:
        """What the client may do with a resource, as bits (KIP-430)."""
        bits = OPERATIONS[resource.type]
        authorizer = self.node.authorizer
        if authorizer is None:
            return bits
        client = self.peer.client
        return sum(
            1 << each
            for each in AclOperation
            if bits >> each & 1 and authorizer.allows(client, each, resource)
        )

    # -- what it takes

    def change_partitions(self, count: int, *, told_since: int) -> None:
        """The client makes or deletes partitions (KIP-599).

        Parameters: `told_since` is the version of the API since which its clients know the error.
        Raises THROTTLING_QUOTA_EXCEEDED.
        """
        if self.quota_charge is not None:
            self.quota_charge.change_partitions(count, is_told=self.version >= told_since)

    @contextmanager
    def heavy_client(self) -> Iterator[HeavyClient]:
        """Return the client to which heavy work is charged. Its quota is charged after the block."""
        client = self.peer.heavy_client
        if client is None:
            client = self.peer.heavy_client = HeavyClient(self.peer.client)
        before = client.seconds
        try:
            yield client
        finally:
            if self.quota_charge is not None:
                self.quota_charge.worked_in_thread(client.seconds - before)

    # -- where nodes are

    def endpoint(self) -> Endpoint:
        """The address of this node for this client: what it dialled unless one is configured."""
        return self.peer.advertised or self.peer.local

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        """The address of a node for this client; None when no such node runs."""
        if node_id == self.node.id:
            return self.endpoint()
        registration = self.node.cluster.registration(node_id)
        return None if registration is None else self._endpoint_of(registration)

    def brokers(self, *, fenced: bool = False) -> Iterator[tuple[Registration, Endpoint]]:
        """The nodes that this client can turn to, and their addresses for it.

        Parameters: `fenced` adds those that run but are not ready.
        """
        nodes = self.node.cluster.nodes
        for node_id in sorted(nodes):
            if fenced or nodes[node_id].ready:
                endpoint = self.endpoint_of(node_id)
                if endpoint is not None:
                    yield nodes[node_id], endpoint

    def _endpoint_of(self, registration: Registration) -> Endpoint | None:
        """The address of another node on the listener by which this client came in."""
        endpoint = registration.listeners.get(self.peer.listener)
        if endpoint is not None and endpoint.host in EVERY_INTERFACE:
            return endpoint._replace(host=self.peer.local.host)
        return endpoint
