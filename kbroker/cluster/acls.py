"""ACLs in the metadata store: each stands by itself, under a key that is made of all that it says."""

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


def to_document(acl: Acl) -> Document:
    """What is stored of an ACL."""
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
    """The same for the same ACL, so that it is there once whoever makes it."""
    text = json.dumps(document, sort_keys=True)
    return ACLS + hashlib.sha256(text.encode()).hexdigest()[:32]
