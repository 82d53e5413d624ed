"""ACLs in the metadata store: each stands by itself, under a key that is made of all that it says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)

from .keys import ACLS
from .store import Document

if TYPE_CHECKING:
    from .cluster import Cluster

ACLS_MAX = 50_000
"""Of a cluster; all nodes have them in memory."""
AT_ONCE = 100
"""Of one transaction."""


def read_acl(document: Document) -> Acl:
    """An ACL as it is stored."""
    return Acl(
        Pattern(
            AclResourceType[document["resource"]],
            PatternType[document["pattern"]],
            document["name"],
        ),
        document["principal"],
        document["host"],
        AclOperation[document["operation"]],
        AclPermission[document["permission"]],
    )


def _document(acl: Acl) -> Document:
    return {
        "resource": acl.pattern.resource_type.name,
        "pattern": acl.pattern.type.name,
        "name": acl.pattern.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


def _key(document: Document) -> str:
    """The same for the same ACL, so that it is there once whoever makes it."""
    text = json.dumps(document, sort_keys=True)
    return ACLS + hashlib.sha256(text.encode()).hexdigest()[:32]


async def add_acls(cluster: Cluster, acls: Iterable[Acl], *, cause: str) -> None:
    """Store ACLs; those that are there already stay as they are. Raises KafkaError."""
    documents = {_key(document): document for document in map(_document, acls)}
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
