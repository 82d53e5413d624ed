"""The type of handlers, and their request context: the node and the client."""

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
from kbroker.runtime.cpu_shares import CpuAccount
from kbroker.security.acls import (
    CLUSTER,
    AclOperation,
    AclResourceType,
    Client,
    Resource,
)
from kbroker.security.audit import NAME_CHARACTERS_MAX, audit_logger
from kbroker.security.principals import ANONYMOUS, Principal
from kbroker.security.rights import VALID_OPERATIONS

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
# Owner of delegation tokens (KIP-373). The resource name is a principal, such as User:alice.
USER = AclResourceType.USER
# Address of a broker that has none for a client, as in Apache Kafka.
NO_ENDPOINT = Endpoint("", -1)
# Bit field of all operations that apply to each resource type (KIP-430).
OPERATIONS = {
    kind: sum(1 << each for each in VALID_OPERATIONS[kind])
    for kind in (TOPIC, GROUP, AclResourceType.CLUSTER)
}
_DENIED = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


class DisconnectError(Exception):
    """Invalid request that has no response: the server logs the message and disconnects."""


class PeerTransport(Protocol):
    """The part of a connection's transport that handlers use."""

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed the connection, without receiving data."""
        ...


class PeerReplies(Protocol):
    """The part of a connection's replies that handlers use."""

    def throttle(self, milliseconds: int) -> None:
        """Handle no further request of the client for a time."""
        ...


class Peer:
    """The client of a connection, and the address that it connected to.

    Attributes:
        advertised: Advertised address of the listener; None to advertise `local`.
        client: Principal and address of the client, for ACLs.
        client_id: Client ID of the most recent request.
        cpu_account: Account of the connection's offloaded CPU work; None before the first work.
        host: IP address of the client.
        is_closed: True once the connection is closed.
        listener: Name of the listener.
        local: Address of this node that the client connected to.
        login: State of the SASL authentication; None if the listener requires none.
        port: Port of the client.
        rejected_batches: Rejected Produce batches of idempotent producers; None before the first.
        replies: Replies of the open connection; None otherwise.
        software: Client software name and version from ApiVersions (KIP-511).
        transport: Transport of the open connection; None otherwise.
    """

    __slots__ = (
        "_on_close",
        "advertised",
        "client",
        "client_id",
        "cpu_account",
        "host",
        "is_closed",
        "listener",
        "local",
        "login",
        "port",
        "rejected_batches",
        "replies",
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
        self.is_closed = False
        self.transport: PeerTransport | None = None
        self.replies: PeerReplies | None = None
        self.cpu_account: CpuAccount | None = None
        self.rejected_batches: RejectedBatches | None = None
        self._on_close: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        """Register a callback to run when the connection closes."""
        self._on_close.append(callback)

    def close(self) -> None:
        """Mark the connection as closed and run the registered callbacks."""
        self.is_closed = True
        self.transport = self.replies = None
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()

    def has_disconnected(self) -> bool:
        """Return True if the client has closed its connection.

        While a request is handled, the connection receives nothing, so `is_closed` is not set yet.
        """
        return self.is_closed or (self.transport is not None and self.transport.peer_has_closed())

    def set_sni_host(self, host: str) -> None:
        """Advertise to the client the host name that it sent in the TLS SNI extension."""
        self.local = Endpoint(host, self.local.port)

    def set_principal(self, principal: Principal) -> None:
        """Set the principal of the authenticated client."""
        self.client = Client(principal, self.host)


class Handler(Protocol):
    """A function that handles the requests of one API."""

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
    """One served API.

    Attributes:
        key: API key.
        versions: Served versions.
        handler: Function that handles the requests.
        request_class: Message class of the requests.
        read_only: The API only reads, so a request of a disconnected client is skipped.
    """

    key: ApiKey
    versions: range
    handler: Handler
    request_class: type[Message]
    read_only: bool = False


class Context:
    """Context of one request.

    Attributes:
        apis: All served APIs, by key.
        client_id: Client ID of the request header.
        key: API key of the request.
        node: The node that handles the request.
        peer: The client.
        quota_charge: Quota charge of the request; None if no quota applies.
        rows: Number of array elements in the request.
        time_slice: Time slice of the connection. Long iterations pause with it.
        version: API version of the request and of its response.
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
        """Return the client's ID and host in the form that group coordinators store."""
        return ClientInfo(self.client_id or "", "/" + self.peer.host)

    # -- authorization

    def allows(
        self, operation: AclOperation, resource: Resource, *, is_filter: bool = False
    ) -> bool:
        """Return True if the client may perform an operation on a resource, and audit the decision.

        Args:
            operation: The operation.
            resource: The resource.
            is_filter: The check filters a response; the client did not name the resource, so
                the audit log has a denial at level DEBUG only.
        """
        authorizer = self.node.authorizer
        if authorizer is None:
            return True
        allowed = authorizer.allows(self.peer.client, operation, resource)
        level = logging.DEBUG if allowed or is_filter else logging.INFO
        if audit_logger.isEnabledFor(level):
            client = self.peer.client
            verdict = authorizer.verdict(client, operation, resource)
            self.node.audit.log_decision(
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
        """Check that the client may perform an operation on a resource.

        Raises:
            KafkaError: The authorization error of the resource type.
        """
        if self.node.authorizer is not None and not self.allows(operation, resource):
            raise KafkaError(
                _DENIED[resource.type],
                f"{self.peer.client.principal} may not {operation.name} {resource}",
            )

    def require_topic(self, operation: AclOperation, name: str) -> None:
        """Check an operation on a topic; see `require`."""
        authorizer = self.node.authorizer
        if authorizer is None or authorizer.has_allowed(self.peer.client, operation, name):
            return
        self.require(operation, Resource(TOPIC, name))

    def require_group(self, operation: AclOperation, group_id: str) -> None:
        """Check an operation on a group; see `require`."""
        if self.node.authorizer is not None:
            self.require(operation, Resource(GROUP, group_id))

    def require_transaction(self, operation: AclOperation, transactional_id: str) -> None:
        """Check an operation on a transactional ID; see `require`."""
        if self.node.authorizer is not None:
            self.require(operation, Resource(TRANSACTIONAL_ID, transactional_id))

    def require_cluster(self, operation: AclOperation) -> None:
        """Check an operation on the cluster; see `require`."""
        if self.node.authorizer is not None:
            self.require(operation, CLUSTER)

    def may_list_topic(self, name: str) -> bool:
        """Return True if a response may list a topic that the client did not name."""
        may = AclOperation.DESCRIBE
        return self.node.authorizer is None or self.allows(
            may, Resource(TOPIC, name), is_filter=True
        )

    def may_list_group(self, group_id: str) -> bool:
        """Return True if a response may list a group that the client did not name."""
        may = AclOperation.DESCRIBE
        return self.node.authorizer is None or self.allows(
            may, Resource(GROUP, group_id), is_filter=True
        )

    def operations(self, resource: Resource) -> int:
        """Return the bit field of the operations that the client may perform (KIP-430)."""
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

    # -- quotas

    def throttle(self, milliseconds: int) -> None:
        """Handle no further request of the client for a time, as above a quota (KIP-219).

        The handler sets the throttle time of the response.
        """
        if self.peer.replies is not None:
            self.peer.replies.throttle(milliseconds)

    def charge_partitions(self, count: int, *, strict_since: int) -> None:
        """Charge the controller mutation quota for created or deleted partitions (KIP-599).

        Args:
            count: Number of partitions.
            strict_since: First version of the API whose clients know THROTTLING_QUOTA_EXCEEDED.

        Raises:
            KafkaError: THROTTLING_QUOTA_EXCEEDED.
        """
        if self.quota_charge is not None:
            self.quota_charge.charge_partitions(count, strict=self.version >= strict_since)

    @contextmanager
    def cpu_account(self) -> Iterator[CpuAccount]:
        """Yield the CPU account of the connection, for offloaded work.

        The time that the block adds to the account is charged to the request quota afterwards.
        """
        client = self.peer.cpu_account
        if client is None:
            client = self.peer.cpu_account = CpuAccount(self.peer.client)
        before = client.seconds
        try:
            yield client
        finally:
            if self.quota_charge is not None:
                self.quota_charge.add_thread_time(client.seconds - before)

    # -- addresses of nodes

    def endpoint(self) -> Endpoint:
        """Return this node's advertised address, or the one that the client connected to."""
        return self.peer.advertised or self.peer.local

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        """Return the address of a node for this client, or None if the node is not registered."""
        if node_id == self.node.id:
            return self.endpoint()
        registration = self.node.cluster.registration(node_id)
        return None if registration is None else self._endpoint_at(registration.listeners)

    def brokers(self) -> Iterator[tuple[Registration, Endpoint]]:
        """Yield the brokers that are not fenced with their addresses for this client."""
        nodes = self.node.cluster.nodes
        for node_id in sorted(nodes):
            if nodes[node_id].ready:
                endpoint = self.endpoint_of(node_id)
                if endpoint is not None:
                    yield nodes[node_id], endpoint

    def fenced_brokers(self) -> Iterator[tuple[int, str | None, Endpoint]]:
        """Yield ID, rack and address of the fenced brokers, which are down or not ready.

        The address is `NO_ENDPOINT` if the broker has no address on the client's listener.
        """
        cluster = self.node.cluster
        for node_id, known in sorted(cluster.registrations.known.items()):
            if not cluster.is_ready(node_id):
                endpoint = self.endpoint_of(node_id) or self._endpoint_at(known.listeners)
                yield node_id, known.rack, endpoint or NO_ENDPOINT

    def _endpoint_at(self, listeners: Mapping[str, Endpoint]) -> Endpoint | None:
        """Return the address of another node on the client's listener."""
        endpoint = listeners.get(self.peer.listener)
        if endpoint is not None and endpoint.host in EVERY_INTERFACE:
            return endpoint._replace(host=self.peer.local.host)
        return endpoint
