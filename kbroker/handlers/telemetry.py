"""GetTelemetrySubscriptions and PushTelemetry: client metrics (KIP-714)."""

from __future__ import annotations

from functools import partial

from kbroker.node.client_metrics import ACCEPTED, INFLATED_BYTES_MAX, Labels
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, DecompressionError, MissingCodecError, decompress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)

from .context import Context
from .registry import handles

# Maximum number of characters of each label of a client.
LABEL_CHARACTERS_MAX = 256


@handles(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions="0", read_only=True)
async def get_telemetry_subscriptions(
    ctx: Context, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Return the metrics that a client should push, the push interval and the client instance ID.

    An empty list means no metrics, one empty name means all metrics.

    Errors: THROTTLING_QUOTA_EXCEEDED if the client repeats the request within its push interval,
    unless its last push was rejected because of an outdated subscription.

    Differs from Kafka: the broker stores client metrics itself. Kafka lists this API only if a
    metrics reporter plug-in receives them.
    """
    metrics = ctx.node.client_metrics
    try:
        subscription = metrics.subscribe(request.client_instance_id, _labels(ctx))
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=subscription.instance_id,
        subscription_id=subscription.subscription_id,
        accepted_compression_types=[*ACCEPTED],
        push_interval_ms=subscription.interval_ms,
        telemetry_max_bytes=metrics.bytes_max,
        delta_temporality=True,
        requested_metrics=[*subscription.metrics],
    )


@handles(ApiKey.PUSH_TELEMETRY, versions="0")
async def push_telemetry(ctx: Context, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Store the metrics of a client, replacing its older ones.

    Errors: the errors of `ClientMetrics.check_push`, and INVALID_RECORD for data that cannot be
    decompressed or has more than `INFLATED_BYTES_MAX` bytes.
    """
    metrics, codec = ctx.node.client_metrics, request.compression_type
    data = bytes(request.metrics)
    try:
        instance = metrics.check_push(
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
            with ctx.cpu_account() as client:
                await ctx.node.heavy_work.run(
                    partial(decompress, codec, data, INFLATED_BYTES_MAX), client
                )
    except DecompressionError:
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
    except MissingCodecError:
        return PushTelemetryResponse(error_code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    metrics.store_push(instance, codec, data)
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
