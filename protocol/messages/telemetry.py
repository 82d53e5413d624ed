"""Client metrics (KIP-714)."""

from ..schema import ZERO_UUID, Int8, Int16, Int32, Uuid, message, wire


@message(key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest:
    """Request of a client for the metrics to push (KIP-714)."""

    client_instance_id: Uuid = ZERO_UUID


@message(key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    """The metrics to push, and the push interval."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = wire()
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = wire()


@message(key=72, versions="0", flexible="0+")
class PushTelemetryRequest:
    """Metrics of a client in the OpenTelemetry format (KIP-714)."""

    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    terminating: bool = False
    compression_type: Int8 = 0
    metrics: bytes = b""


@message(key=72, versions="0", flexible="0+")
class PushTelemetryResponse:
    """Outcome of a `PushTelemetryRequest`."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
