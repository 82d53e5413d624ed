"""What all parts of the API share: the node, its neighbours, who asks, and who may write."""

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
from kbroker.text.documents import Json, read_json
from kbroker.web.logins import FORBIDDEN

from .answers import Refusal, answer, guarded
from .schemas import Schemas
from .sessions import NO_ROOM, Sessions, Viewer
from .trends import Trends

ROOT = "/api/v1"
TOKEN_HEADER = "x-kbroker-token"
SCANS_AT_ONCE = 2
LIVE_MAX = 20
T = TypeVar("T")

View: TypeAlias = Callable[[Request, Viewer], Awaitable[Response]]


class Needs(NamedTuple):
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
    """A place among the streams that may be open; whoever drops it frees it."""

    __slots__ = ("__weakref__",)


DESCRIBE_CLUSTER = Needs(AclOperation.DESCRIBE)
ALTER_CLUSTER = Needs(AclOperation.ALTER)


class Api:
    """Of one node. `may_write` says whether anything may be changed at all; `seconds` is how long one
    request may take."""

    def __init__(
        self,
        local: LocalNode,
        nodes: Sequence[LocalNode],
        trends: Trends,
        sessions: Sessions,
        schemas: Callable[[int], Schemas] | None,
        *,
        may_write: bool,
        seconds: float,
    ) -> None:
        self.local = local
        self.trends = trends
        self.seconds = seconds
        self.scanning = trio.CapacityLimiter(SCANS_AT_ONCE)
        self.live_resting = trio.Lock()
        """Held by the stream that rests between two slices of its work; see `DutyCycle`."""
        self.live: WeakSet[LiveSlot] = WeakSet()
        """Streams that are open or about to open."""
        self.ending = trio.Event()
        """Set before a stop: streams end by themselves then."""
        self._nodes = nodes
        self._sessions = sessions
        self._schemas = schemas
        self._may_write = may_write
        self._token = secrets.token_urlsafe(24)

    @property
    def node(self) -> Node:
        return self.local.node

    @property
    def nodes(self) -> list[Node]:
        """Those of this process that run."""
        return [each.node for each in self._nodes if each.is_running]

    @property
    def elsewhere(self) -> list[int]:
        """The nodes that run in other processes: what only they know is not told here."""
        here = {each.id for each in self._nodes}
        return sorted(self.node.cluster.registrations.live.keys() - here)

    def node_of(self, node_id: int | None) -> Node:
        """A node of this process; this one where that is none."""
        return next((each for each in self.nodes if each.id == node_id), self.node)

    def take_live_slot(self) -> LiveSlot:
        """Take a place for a stream at once, before anything is awaited. Raises Refusal."""
        if len(self.live) >= LIVE_MAX:
            raise Refusal(NO_ROOM, f"there are {LIVE_MAX} live views already")
        slot = LiveSlot()
        self.live.add(slot)
        return slot

    @property
    def listener(self) -> Listener:
        """The listener whose users log in here."""
        return self._sessions.listener

    async def schemas(self, viewer: Viewer) -> Schemas | None:
        """Return the schemas that are registered by now.

        None if this process has no registry, or the viewer may not read schemas.
        """
        if self._schemas is None:
            return None
        found = self._schemas(self.local.id)
        if not viewer.may(AclOperation.READ, found.resource):
            return None
        await found.catch_up()
        return found

    def look(self, path: str, view: View, *needs: Needs) -> Route:
        """Return a route that reads; a view without `needs` filters its rows by itself."""

        async def handle(request: Request) -> Response:
            _check_origin(request)
            async with self._sessions.viewer(request) as viewer:
                _check(viewer, request, needs)
                return await view(request, viewer)

        return Route(ROOT + path, guarded(handle), methods=["GET"])

    def change(self, path: str, view: View, *needs: Needs) -> Route:
        """Return a route that changes something, for pages of this server: they know the token."""

        async def handle(request: Request) -> Response:
            _check_origin(request)
            self._check_write(request)
            async with self._sessions.viewer(request) as viewer:
                _check(viewer, request, needs)
                return await view(request, viewer)

        return Route(ROOT + path, guarded(handle), methods=["POST"])

    def _check_write(self, request: Request) -> None:
        if not self._may_write:
            raise Refusal(FORBIDDEN, "this console only looks; --console-write lets it write")
        given = request.headers.get(TOKEN_HEADER, "").encode()
        if not hmac.compare_digest(given, self._token.encode()):
            raise Refusal(FORBIDDEN, f"{TOKEN_HEADER} is the token of {ROOT}/session")

    def session_route(self, is_under_test: Callable[[], bool]) -> Route:
        """What a page has to know first."""

        async def session(_: Request, viewer: Viewer) -> Response:
            return answer(
                {
                    "version": __version__,
                    "node_id": self.local.id,
                    "cluster_id": self.node.cluster.id,
                    "user": viewer.client.principal.name,
                    "may_write": self._may_write,
                    "token": self._token,
                    "under_test": is_under_test(),
                }
            )

        return self.look("/session", session)


def _check(viewer: Viewer, request: Request, needs: Sequence[Needs]) -> None:
    """Raise Refusal if the viewer lacks one of the permissions."""
    for each in needs:
        viewer.needs(each.operation, each.resource(request))


def _check_origin(request: Request) -> None:
    """Raise Refusal for what a page from elsewhere has its browser ask, even if it sees no answer."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Refusal(FORBIDDEN, "pages from elsewhere may not ask here")


async def document(request: Request) -> dict[str, Json]:
    """The body of a request, which is a JSON object. Raises Refusal."""
    try:
        found = read_json(await request.body())
    except ValueError as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is a JSON object")
    return found


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
    """A field of a body. Raises Refusal."""
    value = found.get(name, default)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if value is not default:
        raise Refusal(400, f"{name} is {kind.__name__}")
    if value is None and kind is str:
        raise Refusal(400, f"{name} is missing")
    return default
