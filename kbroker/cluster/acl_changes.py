"""How ACLs are made and removed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import Acl

from .acls import key_of, to_document
from .cluster import Cluster

ACLS_MAX = 50_000
"""Of a cluster; all nodes have them in memory."""
AT_ONCE = 100
"""Of one transaction."""


async def add_acls(cluster: Cluster, acls: Iterable[Acl], *, cause: str) -> None:
    """Store ACLs; those that are there already stay as they are. Raises KafkaError."""
    documents = {key_of(document): document for document in map(to_document, acls)}
    new = {key: document for key, document in documents.items() if key not in cluster.acls}
    if len(cluster.acls) + len(new) > ACLS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"there are {len(cluster.acls)} ACLs, and at most {ACLS_MAX} are kept; remove some, or use "
            "prefixed ones",
        )
    rest = iter(new.items())
    while some := dict(islice(rest, AT_ONCE)):
        # Whoever else puts the same key puts the same ACL: there is nothing to compare.
        await cluster.transact(some, compares={}, cause=cause)


async def remove_acls(cluster: Cluster, keys: Iterable[str], *, cause: str) -> None:
    """Remove the ACLs with these keys."""
    rest = iter(keys)
    while some := dict.fromkeys(islice(rest, AT_ONCE)):
        await cluster.transact(some, compares={}, cause=cause)
