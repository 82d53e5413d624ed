"""ApiVersions: what this broker serves."""

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

ZERO_LEVELS_SINCE = 4
"""First version whose clients understand a feature that may be off (KAFKA-17011)."""

OF_CLIENT_METRICS = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, versions="0-4", only_looks=True)
def api_versions(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse | Encoded:
    """Behaviour: lists every registered API, those for metrics of clients (KIP-714) while there is a
    subscription; remembers the client's software (KIP-511).

    Versions: 3+ must name the software in letters, digits, '-' and '.', else INVALID_REQUEST, and
    is told the features (KIP-584); 4 also those that may be off.
    """
    if ctx.version >= 3:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        ctx.peer.software = "/".join(names)
    if ctx.peer.login is not None:
        ctx.peer.login.knows_versions = True
    node = ctx.node
    shown = (
        node.cluster.revision,
        node.cluster.features,
        ctx.apis,
        node.client_metrics.are_wanted,
    )
    return node.responses.api_versions.get(ctx.version, shown, partial(_response, ctx))


def _response(ctx: Context) -> ApiVersionsResponse:
    cluster = ctx.node.cluster
    return ApiVersionsResponse(
        api_keys=[_row(api) for api in _announced(ctx)],
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


def refuse_version(apis: Mapping[int, Api]) -> ApiVersionsResponse:
    """Answer an ApiVersions version that is not served: a version 0 body that names the range.

    Clients parse it as version 0 and ask again with the version that they find (KIP-511).
    """
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_row(apis[ApiKey.API_VERSIONS])]
    )


def _announced(ctx: Context) -> Iterator[Api]:
    """What a client is told of.

    One that hears of KIP-714 measures all that it does from then on, and says so in its log, whether or not
    anybody asks for its metrics: librdkafka 2.16 reads a third less then.
    """
    wanted = ctx.node.client_metrics.are_wanted
    return (api for api in ctx.apis.values() if wanted or api.key not in OF_CLIENT_METRICS)


def _row(api: Api) -> ApiVersionsResponse.ApiVersion:
    return ApiVersionsResponse.ApiVersion(
        api_key=api.key, min_version=api.versions.start, max_version=api.versions.stop - 1
    )
