"""The API versions of an older Kafka release: `kbroker serve --as-version`."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from functools import partial

from kbroker.cluster.peers import is_of_node
from kbroker.handlers.context import Api
from kbroker.handlers.registry import load_apis
from kbroker.net.connection import Intercept
from kbroker.net.replies import Replies
from kbroker.net.requests import Request, Requests
from kbroker.node.node import Node
from kbroker.protocol.headers import RequestHeader

from .errors import StartFailed


class VersionInterceptor:
    """Limits the versions that one connection serves, unless its client belongs to kbroker.

    Args:
        apis: The APIs and versions for other clients.
        own_clients: Client IDs of services of kbroker, which need the newest versions.
        node: The node that serves the connection.
        requests: The connection's requests.
    """

    def __init__(
        self,
        apis: Mapping[int, Api],
        own_clients: Collection[str],
        node: Node,
        requests: Requests,
        _replies: Replies,
    ) -> None:
        self._apis = apis
        self._own_clients = own_clients
        self._node = node
        self._requests = requests
        self._is_known = False

    def identify(self, header: RequestHeader) -> None:
        """Choose the versions by the client ID of the first request."""
        if not self._is_known:
            self._is_known = True
            if not self._is_own_client(header.client_id):
                self._requests.apis = self._apis

    def _is_own_client(self, client_id: str | None) -> bool:
        return client_id in self._own_clients or is_of_node(client_id, self._node.cluster.node_ids)

    def dispatch(self, request: Request) -> Awaitable[None] | None:
        """Handle a request."""
        return self._requests.dispatch(*request)

    def finished(self) -> None:
        """Do nothing."""


def version_limits(release: str | None) -> Intercept | None:
    """Return the argument of `open_broker` that limits the API versions to those of a release.

    Args:
        release: Release of Apache Kafka, such as "3.9"; None for no limits.

    Raises:
        StartFailed: The release is unknown.
    """
    if release is None:
        return None
    # These imports would delay the start of servers without this option.
    from kbroker.schemas import CLIENT_ID as REGISTRY
    from kbroker.testing.releases import apply_limits, limits_of
    from kbroker.web import CLIENT_ID as CONSOLE

    try:
        limits = limits_of(release)
    except ValueError as error:
        raise StartFailed(f"--as-version: {error}") from None
    return partial(VersionInterceptor, apply_limits(load_apis(), limits), {REGISTRY, CONSOLE})
