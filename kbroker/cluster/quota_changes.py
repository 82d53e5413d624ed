"""How quotas of clients are set and taken away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.quotas import Entity

from .client_quotas import Values, key_of, to_document
from .cluster import Cluster
from .store import OPERATIONS_MAX, Document

QUOTAS_MAX = 10_000
"""Entities of a cluster that have quotas; all nodes have them in memory."""
AT_ONCE = OPERATIONS_MAX
"""Entities of one transaction."""

Alteration: TypeAlias = Mapping[str, float | None]
"""Quotas of an entity by key; None takes one away."""


async def alter_quotas(
    cluster: Cluster, changes: list[tuple[Entity, Alteration]], *, cause: str
) -> None:
    """Change the quotas of at most `AT_ONCE` entities, each of which stands there once: all or none.

    What they do not name stays. Raises KafkaError: POLICY_VIOLATION for more than there may be.
    """
    while True:
        puts, compares = _planned(cluster, changes)
        if not puts:
            return
        known = cluster.client_quotas
        check_room(cluster, sum(new is not None and key not in known for key, new in puts.items()))
        if await cluster.transact(puts, compares=compares, cause=cause) is not None:
            return


def check_room(cluster: Cluster, count: int) -> None:
    """Raise POLICY_VIOLATION where there is no room for so many more entities."""
    quotas = cluster.client_quotas
    if len(quotas) + count > QUOTAS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"there are quotas of {len(quotas)} entities, and at most {QUOTAS_MAX} are kept; remove "
            "some, or set a default",
        )


def _planned(
    cluster: Cluster, changes: list[tuple[Entity, Alteration]]
) -> tuple[dict[str, Document | None], dict[str, int]]:
    """What is to be stored, and the revisions that this rests on."""
    quotas = cluster.client_quotas
    puts: dict[str, Document | None] = {}
    for entity, alteration in changes:
        key = key_of(entity)
        before = quotas.values(key)
        after = _altered(before, alteration)
        if after != before:
            puts[key] = to_document(entity, after) if after else None
    return puts, {key: quotas.revision(key) for key in puts}


def _altered(before: Values, alteration: Alteration) -> Values:
    merged = {**before, **alteration}
    return {key: value for key, value in merged.items() if value is not None}
