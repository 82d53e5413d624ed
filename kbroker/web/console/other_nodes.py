"""Data of the nodes of a server's other processes, from the consoles of those nodes.

Each node of a multi-process server has an HTTP server of its own on the loopback interface. The node that
serves the console forwards the viewer's credentials, so the same permissions apply there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import trio
from starlette.requests import Request

from kbroker.client.endpoint import Endpoint
from kbroker.node.node import Node
from kbroker.runtime.cpu_shares import CpuAccount
from kbroker.runtime.http_client import HTTP_OK, HttpError, fetch
from kbroker.text.documents import Json, read_json

from .sessions import Viewer

logger = logging.getLogger(__name__)

# Maximum time (s) to wait for another node, and maximum size of its response.
SECONDS_MAX = 2
BYTES_MAX = 4 << 20
# Larger responses are parsed in a thread.
PARSED_AT_ONCE_BYTES = 16 * 1024
# Query parameter that asks a node for its own data only.
OWN = "own"


class Gathered(NamedTuple):
    """Data of other nodes.

    Attributes:
        found: Response by node ID.
        silent: IDs of the nodes that did not respond in time.
        unavailable: IDs of the nodes whose consoles this node cannot reach, such as nodes of other
            machines.
    """

    found: dict[int, dict[str, Json]]
    silent: list[int]
    unavailable: list[int]

    def row(self) -> dict[str, object]:
        """Return the IDs of the nodes whose data is missing, for a response."""
        return {"silent_nodes": self.silent, "other_nodes": self.unavailable}


class OtherNodes:
    """Asks the consoles of the other processes.

    Args:
        endpoints: HTTP address of each other node of this server, by node ID.
    """

    def __init__(self, endpoints: Mapping[int, Endpoint]) -> None:
        self._endpoints = endpoints

    async def ask(
        self, request: Request, viewer: Viewer, node: Node, remote: Sequence[int]
    ) -> Gathered:
        """Send the request of a viewer to all other nodes concurrently.

        Args:
            request: Request of the viewer; its path, query and credentials are forwarded.
            viewer: The viewer.
            node: The node that serves the console.
            remote: IDs of the live nodes of other processes.
        """
        found: dict[int, dict[str, Json]] = {}
        if OWN in request.query_params:
            return Gathered(found, [], [])
        asked = {each: self._endpoints[each] for each in remote if each in self._endpoints}
        query = urlencode([*request.query_params.multi_items(), (OWN, "1")])
        credentials = request.headers.get("authorization")
        path = quote(request.scope["path"])
        headers = {"Authorization": credentials} if credentials else {}
        account = CpuAccount(viewer.client)

        async def ask_one(node_id: int, endpoint: Endpoint) -> None:
            try:
                response = await fetch(
                    f"http://{endpoint}{path}?{query}",
                    seconds=SECONDS_MAX,
                    bytes_max=BYTES_MAX,
                    trusted=None,
                    headers=headers,
                )
            except HttpError as error:
                logger.debug("no data of node %d: %s", node_id, error)
                return
            if response.status != HTTP_OK:
                logger.debug("node %d returned HTTP status %d", node_id, response.status)
                return
            parse = partial(read_json, response.body)
            try:
                is_large = len(response.body) > PARSED_AT_ONCE_BYTES
                document = await node.heavy_work.run(parse, account) if is_large else parse()
            except ValueError as error:
                logger.debug("invalid response of node %d: %s", node_id, error)
                return
            if isinstance(document, dict):
                found[node_id] = document

        async with trio.open_nursery() as nursery:
            for node_id, endpoint in asked.items():
                nursery.start_soon(ask_one, node_id, endpoint)
        return Gathered(
            found,
            [each for each in asked if each not in found],
            [each for each in remote if each not in asked],
        )


def json_objects(responses: Iterable[Mapping[str, object]], name: str) -> list[dict[str, Any]]:
    """Return the objects of the lists with a name in all responses."""
    rows = (each.get(name) for each in responses)
    lists = [each for each in rows if isinstance(each, list)]
    return [each for some in lists for each in some if isinstance(each, dict)]


def json_int(found: Mapping[str, Json], name: str) -> int:
    """Return an integer of a response; 0 if it is missing."""
    value = found.get(name)
    return value if isinstance(value, int) else 0
