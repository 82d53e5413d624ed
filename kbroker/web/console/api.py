"""Common parts of the console's API: nodes, sessions, permissions and request bodies."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, overload
from weakref import WeakSet

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker import __version__
from kbroker.broker.local_node import LocalNode
from kbroker.net.server import Listener
from kbroker.node.node import Node
from kbroker.security.acls import CLUSTER, AclOperation, AclResourceType, Resource
from kbroker.text.documents import Json, read_request_json
from kbroker.web.logins import FORBIDDEN

from .answers import ApiError, json_response, with_error_responses
from .other_nodes import Gathered, OtherNodes
from .schemas import NodeSchemas, Registry, Schemas
from .sessions import Sessions, Viewer
from .statuses import TOO_MANY_REQUESTS
from .trends import Trends

# Path of the API.
ROOT = "/api/v1"
TOKEN_HEADER = "x-kbroker-token"
# Maximum number of concurrent scans of records.
SCANS_AT_ONCE = 2
# Maximum number of live streams.
LIVE_MAX = 20
T = TypeVar("T")

View: TypeAlias = Callable[[Request, Viewer], Awaitable[Response]]


class Permission(NamedTuple):
    """A permission that a route needs.

    Attributes:
        operation: Operation that the viewer must be allowed.
        type: Type of the resource.
        parameter: Part of the path that names the resource; empty for the cluster.
    """

    operation: AclOperation
    type: AclResourceType = AclResourceType.CLUSTER
    parameter: str = ""

    def resource(self, request: Request) -> Resource:
        """Return the resource that a request is about."""
        return (
            Resource(self.type, request.path_params[self.parameter]) if self.parameter else CLUSTER
        )


class LiveSlot:
    """A slot for a live stream; garbage collection frees it."""

    __slots__ = ("__weakref__",)


DESCRIBE_CLUSTER = Permission(AclOperation.DESCRIBE)
ALTER_CLUSTER = Permission(AclOperation.ALTER)
DESCRIBE_CLUSTER_CONFIGS = Permission(AclOperation.DESCRIBE_CONFIGS)
ALTER_CLUSTER_CONFIGS = Permission(AclOperation.ALTER_CONFIGS)


class Api:
    """API of one node.

    Attributes:
        seconds: Maximum duration of a request, in seconds.
        live_resting: Held by the stream that pauses between two time slices; see `DutyCycle`.
        live: Slots of streams that are open or about to open.
        ending: Set before a stop, so that streams end.
    """

    def __init__(
        self,
        local: LocalNode,
        nodes: Sequence[LocalNode],
        trends: Trends,
        sessions: Sessions,
        schemas: Callable[[int], NodeSchemas] | None,
        others: OtherNodes,
        *,
        may_write: bool,
        seconds: float,
    ) -> None:
        self.local = local
        self.trends = trends
        self.seconds = seconds
        self.scanning = trio.CapacityLimiter(SCANS_AT_ONCE)
        self.live_resting = trio.Lock()
        self.live: WeakSet[LiveSlot] = WeakSet()
        self.ending = trio.Event()
        self._nodes = nodes
        self._sessions = sessions
        self._schemas = schemas
        self._others = others
        self._may_write = may_write
        self._token = secrets.token_urlsafe(24)

    @property
    def node(self) -> Node:
        return self.local.node

    @property
    def running_nodes(self) -> list[LocalNode]:
        """Running nodes of this process, with their listeners."""
        return [each for each in self._nodes if each.is_running]

    @property
    def nodes(self) -> list[Node]:
        """Running nodes of this process."""
        return [each.node for each in self.running_nodes]

    @property
    def other_nodes(self) -> list[int]:
        """IDs of the nodes of other processes, whose internal state this process cannot read."""
        local_ids = {each.id for each in self._nodes}
        return sorted(self.node.cluster.registrations.live.keys() - local_ids)

    async def ask_other_nodes(self, request: Request, viewer: Viewer) -> Gathered:
        """Send the request of a viewer to the nodes of other processes."""
        return await self._others.ask(request, viewer, self.node, self.other_nodes)

    async def ask_node(
        self, request: Request, viewer: Viewer, node_id: int
    ) -> Mapping[str, Json] | None:
        """Send the request of a viewer to one node of another process.

        Returns:
            The response, or None if the node runs in this process, did not respond, or belongs to
            another server.
        """
        if node_id not in self.other_nodes:
            return None
        others = await self._others.ask(request, viewer, self.node, [node_id])
        return others.found.get(node_id)

    def node_of(self, node_id: int | None) -> Node:
        """Return the node with this ID if it runs in this process, else the node of this API."""
        return next((each for each in self.nodes if each.id == node_id), self.node)

    def take_live_slot(self) -> LiveSlot:
        """Reserve a slot for a stream; call it before the first await. Raises ApiError."""
        if len(self.live) >= LIVE_MAX:
            raise ApiError(TOO_MANY_REQUESTS, f"too many live views (maximum {LIVE_MAX})")
        slot = LiveSlot()
        self.live.add(slot)
        return slot

    def may_change(
        self, viewer: Viewer, operation: AclOperation, resource: Resource = CLUSTER
    ) -> bool:
        """Return True if this console allows changes and the viewer has a permission."""
        return self._may_write and viewer.may(operation, resource)

    @property
    def may_write(self) -> bool:
        """Return True if this console allows changes."""
        return self._may_write

    @property
    def listener(self) -> Listener:
        """Listener whose users authenticate at the console."""
        return self._sessions.listener

    async def schemas(self, viewer: Viewer) -> Schemas | None:
        """Return the registered schemas.

        None if this process has no registry, or if the viewer may not read schemas.
        """
        if self._schemas is None:
            return None
        found = self._schemas(self.local.id).decoder
        if not viewer.may(AclOperation.READ, found.resource):
            return None
        await found.catch_up()
        # The permission may have been removed in the meantime.
        return found if viewer.may(AclOperation.READ, found.resource) else None

    @property
    def registry(self) -> Registry | None:
        """The schema registry of this process; None if this process runs none."""
        return None if self._schemas is None else self._schemas(self.local.id).registry

    def permitted(self, viewer: Viewer, resource: Resource, *operations: AclOperation) -> list[str]:
        """Return the names of those operations that a viewer may perform in this console.

        The list is empty if the console is read-only, so that pages offer no changes.
        """
        if not self._may_write:
            return []
        return [each.name for each in operations if viewer.may(each, resource)]

    def permits_any(
        self, viewer: Viewer, operation: AclOperation, resource_type: AclResourceType
    ) -> bool:
        """Return True if a viewer may perform an operation on some resource of a type, here."""
        return self._may_write and viewer.may_any(operation, resource_type)

    def read_route(self, path: str, view: View, *permissions: Permission) -> Route:
        """Return a GET route.

        Args:
            path: Path below the API root.
            view: Handler; without `permissions` it filters its rows by permission itself.
            permissions: Permissions that the viewer needs.
        """

        async def handle(request: Request) -> Response:
            _check_origin(request)
            async with self._sessions.viewer(request) as viewer:
                _check(viewer, request, permissions)
                return await view(request, viewer)

        return Route(ROOT + path, with_error_responses(handle), methods=["GET"])

    def write_route(self, path: str, view: View, *permissions: Permission) -> Route:
        """Return a POST route that changes something and requires the session's token.

        Args:
            path: Path below the API root.
            view: Handler.
            permissions: Permissions that the viewer needs.
        """

        async def handle(request: Request) -> Response:
            _check_origin(request)
            self._check_write(request)
            async with self._sessions.viewer(request) as viewer:
                _check(viewer, request, permissions)
                return await view(request, viewer)

        return Route(ROOT + path, with_error_responses(handle), methods=["POST"])

    def _check_write(self, request: Request) -> None:
        if not self._may_write:
            raise ApiError(
                FORBIDDEN,
                "this console is read-only; start kbroker with --console-write to allow changes",
            )
        given = request.headers.get(TOKEN_HEADER, "").encode()
        if not hmac.compare_digest(given, self._token.encode()):
            raise ApiError(FORBIDDEN, f"invalid {TOKEN_HEADER}; use the token of {ROOT}/session")

    def session_route(self, is_under_test: Callable[[], bool]) -> Route:
        """Return the route with the version, user and token, which a page loads first."""

        async def session(_: Request, viewer: Viewer) -> Response:
            return json_response(
                {
                    "version": __version__,
                    "node_id": self.local.id,
                    "cluster_id": self.node.cluster.id,
                    "user": viewer.client.principal.name,
                    "may_write": self._may_write,
                    "enforces_acls": not viewer.sees_all,
                    "request_bytes_max": self.node.config.http_max_request_bytes,
                    "num_partitions": self.node.config.num_partitions,
                    "default_replication_factor": self.node.config.default_replication_factor,
                    "token": self._token,
                    "under_test": is_under_test(),
                }
            )

        return self.read_route("/session", session)


def _check(viewer: Viewer, request: Request, permissions: Sequence[Permission]) -> None:
    """Raise ApiError if the viewer lacks one of the permissions."""
    for each in permissions:
        viewer.require(each.operation, each.resource(request))


def _check_origin(request: Request) -> None:
    """Raise ApiError for a cross-site request, whose sender could not even read the response."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise ApiError(FORBIDDEN, "cross-site requests are not allowed")


async def read_json_body(request: Request) -> dict[str, Json]:
    """Return the JSON object in a request body. Raises ApiError."""
    try:
        found = read_request_json(await request.body())
    except ValueError as error:
        raise ApiError(400, f"request body: invalid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiError(400, "request body: expected a JSON object")
    return found


def text_list(found: Mapping[str, object], name: str, most: int) -> list[str]:
    """Return a list of distinct strings in a request body; empty if missing. Raises ApiError."""
    values = field(found, name, list, [])
    texts = [each for each in values if isinstance(each, str)]
    if len(texts) < len(values):
        raise ApiError(400, f"{name} must be a list of strings")
    if len(texts) > most:
        raise ApiError(400, f"{name} has {len(texts)} elements (maximum {most})")
    return [*dict.fromkeys(texts)]


def object_list(found: Mapping[str, object], name: str, most: int) -> list[dict[str, object]]:
    """Return a list of at least one JSON object in a request body. Raises ApiError."""
    values = field(found, name, list, [])
    rows = [each for each in values if isinstance(each, dict)]
    if not rows or len(rows) < len(values):
        raise ApiError(400, f"{name} must be a list of JSON objects with at least one element")
    if len(rows) > most:
        raise ApiError(400, f"{name} has {len(rows)} elements (maximum {most})")
    return rows


@overload
def field(
    found: Mapping[str, object], name: str, kind: type[str], default: str | None = None
) -> str: ...


@overload
def field(found: Mapping[str, object], name: str, kind: type[T], default: T) -> T: ...


@overload
def field(found: Mapping[str, object], name: str, kind: type[T]) -> T | None: ...


def field(
    found: Mapping[str, object], name: str, kind: type[T], default: T | None = None
) -> T | None:
    """Return a field of a request body after a check of its type. Raises ApiError."""
    value = found.get(name, default)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if value is not default:
        raise ApiError(400, f"{name} must be of type {kind.__name__}")
    if value is None and kind is str:
        raise ApiError(400, f"{name} is missing")
    return default
