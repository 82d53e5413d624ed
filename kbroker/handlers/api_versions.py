"""ApiVersions: the APIs, versions and features of this broker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

from kbroker.cluster.features import SUPPORTED
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

from .context import Api, Context
from .registry import handles

# First version whose clients accept a feature with minimum level 0 (KAFKA-17011).
ZERO_LEVELS_SINCE = 4

TELEMETRY_APIS = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, versions="0-4", read_only=True)
def api_versions(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse | Encoded:
    """List the served APIs, and record the client's software name and version (KIP-511).

    The telemetry APIs (KIP-714) are listed only while a client metrics subscription exists.

    Versions: 3+ requests must name the software with letters, digits, '-' and '.', otherwise the
    error is INVALID_REQUEST. 3+ responses have features (KIP-584); 4 adds features with minimum
    level 0.
    """
    if ctx.version >= 3:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        ctx.peer.software = "/".join(names)
    if ctx.peer.login is not None:
        ctx.peer.login.knows_versions = True
    node = ctx.node
    cache_key = (
        node.cluster.revision,
        node.cluster.features,
        ctx.apis,
        node.client_metrics.has_subscriptions,
    )
    return node.responses.api_versions.get(ctx.version, cache_key, partial(_response, ctx))


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
