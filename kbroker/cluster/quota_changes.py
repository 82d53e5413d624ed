"""Changes of client quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.quotas import Entity

from .client_quotas import Values, key_of, to_document
from .cluster import Cluster
from .store import OPERATIONS_MAX, Document

# Maximum number of entities with quotas in a cluster. All nodes keep them in memory.
QUOTAS_MAX = 10_000
# Maximum number of entities per transaction.
AT_ONCE = OPERATIONS_MAX

# Quotas of an entity by key; None removes a quota.
Alteration: TypeAlias = Mapping[str, float | None]


async def alter_quotas(
    cluster: Cluster, changes: list[tuple[Entity, Alteration]], *, cause: str
) -> None:
    """Change the quotas of distinct entities in one transaction.

    Args:
        cluster: The cluster metadata.
        changes: At most `AT_ONCE` entities with their changes; other quotas stay.
        cause: Reason for the log.

    Raises:
        KafkaError: POLICY_VIOLATION if the cluster would have too many entities with quotas.
    """
    while True:
        puts, compares = _plan(cluster, changes)
        if not puts:
            return
        known = cluster.client_quotas
        check_quota_limit(
            cluster, sum(new is not None and key not in known for key, new in puts.items())
        )
        if await cluster.transact(puts, compares=compares, cause=cause) is not None:
            return


def check_quota_limit(cluster: Cluster, count: int) -> None:
    """Raise POLICY_VIOLATION if `count` more entities with quotas exceed the limit."""
    quotas = cluster.client_quotas
    if len(quotas) + count > QUOTAS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"too many quotas: the cluster has those of {len(quotas)} entities (maximum: {QUOTAS_MAX}); "
            "remove some, or set a default",
        )


def _plan(
    cluster: Cluster, changes: list[tuple[Entity, Alteration]]
) -> tuple[dict[str, Document | None], dict[str, int]]:
    """Return the entries to store, and the revisions to compare."""
    quotas = cluster.client_quotas
    puts: dict[str, Document | None] = {}
    for entity, alteration in changes:
        key = key_of(entity)
        before = quotas.values(key)
        after = _merge(before, alteration)
        if after != before:
            puts[key] = to_document(entity, after) if after else None
    return puts, {key: quotas.revision(key) for key in puts}


def _merge(before: Values, alteration: Alteration) -> Values:
    merged = {**before, **alteration}
    return {key: value for key, value in merged.items() if value is not None}
