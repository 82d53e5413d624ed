"""ACLs in the metadata store: one entry per ACL, with a key derived from its contents."""

from __future__ import annotations

import hashlib
import json

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


def read_acl(document: Document) -> Acl:
    """Parse a stored ACL."""
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


def to_document(acl: Acl) -> Document:
    """Return the stored form of an ACL."""
    return {
        "resource": acl.pattern.resource_type.name,
        "pattern": acl.pattern.type.name,
        "name": acl.pattern.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


def key_of(document: Document) -> str:
    """Return the key of an ACL: a hash of its contents, so that each ACL is stored once."""
    text = json.dumps(document, sort_keys=True)
    return ACLS + hashlib.sha256(text.encode()).hexdigest()[:32]
