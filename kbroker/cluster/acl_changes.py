"""Creation and removal of ACLs in the metadata store."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import trio

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import Acl

from .acls import key_of, to_document
from .cluster import Cluster
from .store import Document

# Maximum number of ACLs in a cluster. All nodes keep them in memory.
ACLS_MAX = 50_000
# Maximum number of ACLs per transaction, and per event-loop iteration.
AT_ONCE = 100


async def add_acls(cluster: Cluster, acls: Iterable[Acl], *, cause: str) -> None:
    """Store ACLs that do not exist yet.

    Raises:
        KafkaError: POLICY_VIOLATION if the cluster would have too many ACLs.
    """
    new: dict[str, Document] = {}
    for count, acl in enumerate(acls, 1):
        document = to_document(acl)
        key = key_of(document)
        if key not in cluster.acls:
            new[key] = document
        if not count % AT_ONCE:
            await trio.lowlevel.checkpoint()
    if len(cluster.acls) + len(new) > ACLS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"too many ACLs: the cluster has {len(cluster.acls)} (maximum: {ACLS_MAX}); remove some, "
            "or use prefixed ones",
        )
    rest = iter(new.items())
    while some := dict(islice(rest, AT_ONCE)):
        # No compare is needed: the key is a hash of the ACL, so every put of a key has one value.
        await cluster.transact(some, compares={}, cause=cause)


async def remove_acls(cluster: Cluster, keys: Iterable[str], *, cause: str) -> None:
    """Remove the ACLs with these keys."""
    rest = iter(keys)
    while some := dict.fromkeys(islice(rest, AT_ONCE)):
        await cluster.transact(some, compares={}, cause=cause)
