"""How much clients may take of brokers (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from kbroker.security.quotas import ENTITY_TYPES, Entity

from .cluster import ClusterClient
from .errors import check

_EXACT, _DEFAULT = 0, 1
"""Match types of a filter."""


class ClientQuota(NamedTuple):
    """The quotas of one entity, by key."""

    entity: Entity
    values: Mapping[str, float]


async def describe_quotas(
    cluster: ClusterClient, wanted: Entity | None = None, *, strict: bool = False
) -> list[ClientQuota]:
    """The quotas of all entities that have these names, or of all there are. Raises KafkaError.

    Parameters: `strict` leaves out those that have other parts as well.
    """
    rows = [
        DescribeClientQuotasRequest.Component(
            entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
        )
        for kind, name in (wanted or {}).items()
    ]
    request = DescribeClientQuotasRequest(components=rows, strict=strict)
    answer = await (await cluster.controller()).ask(request)
    check(answer.error_code, answer.error_message)
    found = [
        ClientQuota(
            dict(
                sorted(((each.entity_type, each.entity_name) for each in entry.entity), key=_place)
            ),
            {each.key: each.value for each in sorted(entry.values, key=lambda each: each.key)},
        )
        for entry in answer.entries or ()
    ]
    return sorted(found, key=lambda each: [*map(_place, each.entity.items())])


def _place(part: tuple[str, str | None]) -> tuple[int, bool, str]:
    """Users first, addresses last; the default stands before names."""
    kind, name = part
    order = ENTITY_TYPES.index(kind) if kind in ENTITY_TYPES else len(ENTITY_TYPES)
    return order, name is not None, name or ""


async def alter_quotas(
    cluster: ClusterClient, entity: Entity, values: Mapping[str, float | None]
) -> None:
    """Set quotas of an entity by key, or with None take them away. Raises KafkaError."""
    cls = AlterClientQuotasRequest
    row = cls.Entry(
        entity=[cls.Entity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            cls.Op(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )
    answer = await (await cluster.controller()).ask(cls(entries=[row]))
    (result,) = answer.entries
    check(result.error_code, result.error_message)
