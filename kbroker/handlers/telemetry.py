"""GetTelemetrySubscriptions and PushTelemetry: metrics that clients send of themselves (KIP-714)."""

from __future__ import annotations

from functools import partial

from kbroker.node.client_metrics import ACCEPTED, INFLATED_BYTES_MAX, Labels
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, DecompressionError, decompress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)

from .context import Context
from .registry import handles

LABEL_CHARACTERS_MAX = 256
"""Of each thing that is remembered of a client."""


@handles(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions="0", only_looks=True)
async def get_telemetry_subscriptions(
    ctx: Context, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Behaviour: tells a client which of its metrics it shall send, how often, and under which id.

    No metrics are none; one empty name is all of them. Errors: THROTTLING_QUOTA_EXCEEDED for a client
    that asks before its interval is over, unless its last push was refused for what it was asked.

    Differs from Kafka, which announces this API only where a plug-in wants metrics: here a node keeps
    them itself.
    """
    metrics = ctx.node.client_metrics
    try:
        asked = metrics.ask(request.client_instance_id, _labels(ctx))
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=asked.instance_id,
        subscription_id=asked.subscription_id,
        accepted_compression_types=[*ACCEPTED],
        push_interval_ms=asked.interval_ms,
        telemetry_max_bytes=metrics.bytes_max,
        delta_temporality=True,
        requested_metrics=[*asked.metrics],
    )


@handles(ApiKey.PUSH_TELEMETRY, versions="0")
async def push_telemetry(ctx: Context, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Behaviour: takes metrics of a client; its newest ones are kept.

    Errors: those of `ClientMetrics.expect`, and INVALID_RECORD for what cannot be decompressed, or comes to
    more than `INFLATED_BYTES_MAX`.
    """
    metrics, codec = ctx.node.client_metrics, request.compression_type
    data = bytes(request.metrics)
    try:
        instance = metrics.expect(
            request.client_instance_id,
            _labels(ctx),
            subscription_id=request.subscription_id,
            codec=codec,
            size=len(data),
            is_last=request.terminating,
        )
    except KafkaError as error:
        return PushTelemetryResponse(error_code=error.code)
    if not data:
        return PushTelemetryResponse()
    try:
        if codec != Codec.NONE:
            with ctx.heavy_client() as client:
                await ctx.node.heavy_work.run(
                    partial(decompress, codec, data, INFLATED_BYTES_MAX), client
                )
    except DecompressionError:
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
    metrics.keep(instance, codec, data)
    return PushTelemetryResponse()


def _labels(ctx: Context) -> Labels:
    name, _, version = ctx.peer.software.partition("/")
    labels = {
        "client_id": ctx.client_id or "",
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": ctx.peer.host,
        "client_source_port": str(ctx.peer.port),
    }
    return {key: value[:LABEL_CHARACTERS_MAX] for key, value in labels.items()}
