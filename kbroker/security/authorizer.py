"""The authorizer of a node, with a cache of decisions."""

from __future__ import annotations

import logging
from typing import Final

from .acls import (
    AclOperation,
    AclResourceType,
    Acls,
    AuthorizerSettings,
    Client,
    Resource,
    Verdict,
    decide,
    decide_any,
)
from .audit import audit_logger

# Maximum number of cached decisions.
DECISIONS_MAX: Final = 10_000
# Maximum number of characters of a resource name whose decisions are cached.
CACHED_NAME_CHARACTERS_MAX: Final = 256


class Authorizer:
    """Decides by the current ACLs of the cluster whether clients may perform operations."""

    def __init__(self, acls: Acls, rules: AuthorizerSettings) -> None:
        self.acls = acls
        self.rules = rules
        self._decisions: dict[tuple[Client, AclOperation, Resource | AclResourceType], bool] = {}
        # Allowed topic operations. Each Produce and Fetch checks them, and creating a `Resource` costs as
        # much as the decision.
        self._topics: set[tuple[Client, AclOperation, str]] = set()
        self._version = acls.version

    def has_allowed(self, client: Client, operation: AclOperation, topic: str) -> bool:
        """Return True if a cached decision allows an operation and needs no log line.

        Otherwise call `allows`.
        """
        if self._version != self.acls.version or audit_logger.isEnabledFor(logging.DEBUG):
            return False
        return (client, operation, topic) in self._topics

    def allows(self, client: Client, operation: AclOperation, resource: Resource) -> bool:
        """Return True if a client may perform an operation on a resource, which need not exist."""
        self._clear_outdated()
        key = client, operation, resource
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self.verdict(client, operation, resource).allowed
            if len(resource.name) <= CACHED_NAME_CHARACTERS_MAX:
                self._decisions[key] = allowed
                if allowed and resource.type is AclResourceType.TOPIC:
                    self._topics.add((client, operation, resource.name))
        return allowed

    def allows_any(
        self, client: Client, operation: AclOperation, resource_type: AclResourceType
    ) -> bool:
        """Return True if a client may perform an operation on some resource of a type (KIP-679)."""
        self._clear_outdated()
        key = client, operation, resource_type
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = decide_any(self.acls, self.rules, client, operation, resource_type)
            self._decisions[key] = allowed
        return allowed

    def _clear_outdated(self) -> None:
        """Clear the cache if the ACLs have changed or if it is full."""
        if self._version != self.acls.version or len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
            self._topics.clear()
            self._version = self.acls.version

    def verdict(self, client: Client, operation: AclOperation, resource: Resource) -> Verdict:
        """Return the decision of `allows` with its reason."""
        return decide(self.acls, self.rules, client, operation, resource)
