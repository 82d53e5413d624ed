"""ApiVersions: the APIs, versions and features of this broker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from kbroker.cluster.features import SUPPORTED
from kbroker.cluster.registrations import NO_NODE
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

from .context import Api, Context
from .registry import handles

if TYPE_CHECKING:
    from kbroker.node.node import Node

# First version whose clients accept a feature with minimum level 0 (KAFKA-17011).
ZERO_LEVELS_SINCE = 4

TELEMETRY_APIS = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, versions="0-5", read_only=True)
def api_versions(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse | Encoded:
    """List the served APIs, and record the client's software name and version (KIP-511).

    The telemetry APIs (KIP-714) are listed only while a client metrics subscription exists.

    Versions: 3+ requests must name the software with letters, digits, '-' and '.', otherwise the
    error is INVALID_REQUEST. 3+ responses have features (KIP-584); 4 adds features with minimum
    level 0. 5 can name the cluster and node that the client expects; another node responds with
    REBOOTSTRAP_REQUIRED (KIP-1242).
    """
    if ctx.version >= 3:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names) or _names_half_a_node(request):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        ctx.peer.software = "/".join(names)
    login, node = ctx.peer.login, ctx.node
    if login is not None:
        login.knows_versions = True
    if (login is None or login.has_session) and _expects_other_node(node, request):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    cache_key = (
        node.cluster.revision,
        node.cluster.features,
        ctx.apis,
        node.client_metrics.has_subscriptions,
    )
    return node.responses.api_versions.get(ctx.version, cache_key, partial(_response, ctx))


def _names_half_a_node(request: ApiVersionsRequest) -> bool:
    """Return True if the request has a cluster ID without a node ID, or the reverse."""
    return (request.cluster_id is None) != (request.node_id == NO_NODE)


def _expects_other_node(node: Node, request: ApiVersionsRequest) -> bool:
    """Return True if the client expects another cluster or node at this address.

    As in Kafka, requests before authentication are not checked.
    """
    if request.cluster_id is None:
        return False
    return (request.cluster_id, request.node_id) != (node.cluster.id, node.id)


def _response(ctx: Context) -> ApiVersionsResponse:
    cluster = ctx.node.cluster
    return ApiVersionsResponse(
        api_keys=[_row(api) for api in _listed_apis(ctx)],
        supported_features=[
            ApiVersionsResponse.SupportedFeature(
                name=name, min_version=levels[0], max_version=levels[-1]
            )
            for name, levels in SUPPORTED.items()
            if levels[0] or ctx.version >= ZERO_LEVELS_SINCE
        ],
        finalized_features_epoch=cluster.revision,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeature(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, level in cluster.features.items()
        ],
    )


def unsupported_version_response(apis: Mapping[int, Api]) -> ApiVersionsResponse:
    """Return the response to an unsupported ApiVersions version: version 0 with the valid range.

    Clients parse it as version 0 and retry with a version of that range (KIP-511).
    """
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_row(apis[ApiKey.API_VERSIONS])]
    )


def _listed_apis(ctx: Context) -> Iterator[Api]:
    """Yield the APIs to list: without the telemetry APIs if no subscription exists.

    Clients that see the telemetry APIs collect metrics even without a subscription, and log that
    they do. In librdkafka 2.16, this costs a third of the read throughput.
    """
    has_subscriptions = ctx.node.client_metrics.has_subscriptions
    return (api for api in ctx.apis.values() if has_subscriptions or api.key not in TELEMETRY_APIS)


def _row(api: Api) -> ApiVersionsResponse.ApiVersion:
    return ApiVersionsResponse.ApiVersion(
        api_key=api.key, min_version=api.versions.start, max_version=api.versions.stop - 1
    )
