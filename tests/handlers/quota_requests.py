"""Test helpers that send requests to alter and describe client quotas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from kbroker.security.quotas import Entity

from ..wire import (
    Wire,
)

INVALID, POLICY = ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION


# Entity of unauthenticated connections.
USER: Entity = {"user": "ANONYMOUS"}


Values = Mapping[str, float | None]


def row_of(entity: Entity, values: Values) -> AlterClientQuotasRequest.Entry:
    cls = AlterClientQuotasRequest
    return cls.Entry(
        entity=[cls.Entity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            cls.Op(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )


async def alter(
    wire: Wire, *rows: AlterClientQuotasRequest.Entry, validate_only: bool = False
) -> list[int]:
    """Alter quotas and return the error code of each entity; only errors have a message."""
    ask = AlterClientQuotasRequest(entries=[*rows], validate_only=validate_only)
    response = await wire.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, ask)
    assert all(bool(each.error_code) == bool(each.error_message) for each in response.entries)
    return [each.error_code for each in response.entries]


async def set_quota(wire: Wire, entity: Entity, **values: float | None) -> None:
    assert await alter(wire, row_of(entity, values)) == [0]


async def describe_quotas(
    wire: Wire, *components: tuple[Any, ...], strict: bool = False, version: int = 1
) -> Any:
    cls = DescribeClientQuotasRequest
    rows = [
        cls.Component(entity_type=kind, match_type=match, match=name)
        for kind, match, name in components
    ]
    ask = cls(components=rows, strict=strict)
    return await wire.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, ask)


async def quotas_by_entity(
    wire: Wire, *components: tuple[Any, ...], strict: bool = False
) -> dict[str, Any]:
    """Return quotas by entity, encoded as JSON."""
    response = await describe_quotas(wire, *components, strict=strict)
    assert (response.error_code, response.error_message) == (0, None)
    return {
        json.dumps({each.entity_type: each.entity_name for each in entry.entity}): {
            each.key: each.value for each in entry.values
        }
        for entry in response.entries
    }
