"""Client quotas (KIP-546)."""

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

# Name of the default entity in rows.
DEFAULT = "<default>"
# Match types of DescribeClientQuotas.
_EXACT, _DEFAULT = 0, 1


class ClientQuota(NamedTuple):
    """Quotas of one entity, by quota key."""

    entity: Entity
    values: Mapping[str, float]

    def row(self) -> dict[str, object]:
        """Return the fields for commands and the console."""
        names = {
            kind.replace("-", "_"): DEFAULT if name is None else name
            for kind, name in self.entity.items()
        }
        return {**names, "quotas": {key: number_of(value) for key, value in self.values.items()}}


def number_of(value: float) -> float | int:
    """Return a quota without a fraction if it is an integer."""
    return int(value) if value.is_integer() else value


async def describe_quotas(
    cluster: ClusterClient, wanted: Entity | None = None, *, strict: bool = False
) -> list[ClientQuota]:
    """Return the quotas of the entities that match.

    Args:
        cluster: The cluster to query.
        wanted: Name by entity type (None for the default entity), or None for all entities.
        strict: Exclude entities that have additional entity types.

    Raises:
        KafkaError: The broker rejects the request.
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
                sorted(
                    ((each.entity_type, each.entity_name) for each in entry.entity), key=_sort_key
                )
            ),
            {each.key: each.value for each in sorted(entry.values, key=lambda each: each.key)},
        )
        for entry in answer.entries or ()
    ]
    return sorted(found, key=lambda each: [*map(_sort_key, each.entity.items())])


def _sort_key(part: tuple[str, str | None]) -> tuple[int, bool, str]:
    """Return a sort key: users before client IDs before addresses, defaults before names."""
    kind, name = part
    order = ENTITY_TYPES.index(kind) if kind in ENTITY_TYPES else len(ENTITY_TYPES)
    return order, name is not None, name or ""


async def alter_quotas(
    cluster: ClusterClient, entity: Entity, values: Mapping[str, float | None]
) -> None:
    """Set or remove quotas of an entity.

    Args:
        cluster: The cluster to change.
        entity: Name by entity type, None for the default entity.
        values: Value by quota key, None to remove the quota.

    Raises:
        KafkaError: The broker rejects the change.
    """
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
