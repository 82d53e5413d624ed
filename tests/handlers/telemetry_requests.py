"""Test helpers that send requests of clients that push metrics (KIP-714)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.otlp import Metric
from kbroker.protocol.schema import ZERO_UUID

from ..protocol.test_otlp import field, gauge, pushed
from ..wire import Wire, request

CLIENT_METRICS = 16


DATA = pushed(gauge("producer.rate", field(4, 2.5)))


async def subscribe(wire: Wire, name: str, **values: str | None) -> int:
    """Alter a metrics subscription; a value of None deletes the setting."""
    cls = IncrementalAlterConfigsRequest
    configs = [
        cls.Config(name=key.replace("_", "."), config_operation=int(value is None), value=value)
        for key, value in values.items()
    ]
    row = cls.Resource(resource_type=CLIENT_METRICS, resource_name=name, configs=configs)
    response = await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, cls(resources=[row]))
    return int(response.responses[0].error_code)


async def get_subscription(wire: Wire, instance_id: uuid.UUID = ZERO_UUID) -> Any:
    message = request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, client_instance_id=instance_id)
    return await wire.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, message)


async def push(wire: Wire, subscription: Any, data: bytes = DATA, **fields: Any) -> int:
    values = {
        "client_instance_id": subscription.client_instance_id,
        "subscription_id": subscription.subscription_id,
        "metrics": data,
        **fields,
    }
    response = await wire.ask(ApiKey.PUSH_TELEMETRY, 0, request(ApiKey.PUSH_TELEMETRY, **values))
    return int(response.error_code)


def latest(broker: Broker) -> list[tuple[Mapping[str, str], list[Metric]]]:
    kept = broker.node.client_metrics.latest()
    return [(labels, each.metrics(100)) for labels, each in kept]
