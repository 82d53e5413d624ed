"""Who may do what: the answers that handlers ask for."""

from __future__ import annotations

import logging
from typing import Final

from .acls import (
    AclOperation,
    AclResourceType,
    Acls,
    Client,
    Resource,
    Rules,
    Verdict,
    decide,
    decide_any,
)
from .audit import audit_logger

KEPT_MAX: Final = 10_000
"""Answers that are kept."""
KEPT_CHARACTERS_MAX: Final = 256
"""Of a name for which an answer is kept."""


class Authorizer:
    """Answers whether somebody may do something, by the ACLs of a cluster as they are now."""

    def __init__(self, acls: Acls, rules: Rules) -> None:
        self.acls = acls
        self.rules = rules
        self._kept: dict[tuple[Client, AclOperation, Resource | AclResourceType], bool] = {}
        self._topics: set[tuple[Client, AclOperation, str]] = set()
        """What was allowed of topics: each Produce and Fetch asks, and a `Resource` costs as much as the
        answer."""
        self._version = acls.version

    def has_allowed(self, client: Client, operation: AclOperation, topic: str) -> bool:
        """Whether it is known that somebody may do something with a topic, and nobody logs that.

        If not, ask `allows`.
        """
        if self._version != self.acls.version or audit_logger.isEnabledFor(logging.DEBUG):
            return False
        return (client, operation, topic) in self._topics

    def allows(self, client: Client, operation: AclOperation, resource: Resource) -> bool:
        """Whether somebody may do something with a resource, be there such a one or not."""
        self._forget()
        asked = client, operation, resource
        allowed = self._kept.get(asked)
        if allowed is None:
            allowed = self.verdict(client, operation, resource).allowed
            if len(resource.name) <= KEPT_CHARACTERS_MAX:
                self._kept[asked] = allowed
                if allowed and resource.type is AclResourceType.TOPIC:
                    self._topics.add((client, operation, resource.name))
        return allowed

    def allows_any(
        self, client: Client, operation: AclOperation, resource_type: AclResourceType
    ) -> bool:
        """Whether there could be a resource of a type with which somebody may do something."""
        self._forget()
        asked = client, operation, resource_type
        allowed = self._kept.get(asked)
        if allowed is None:
            allowed = decide_any(self.acls, self.rules, client, operation, resource_type)
            self._kept[asked] = allowed
        return allowed

    def _forget(self) -> None:
        """Keep no answer that may not be true any more, nor too many of them."""
        if self._version != self.acls.version or len(self._kept) >= KEPT_MAX:
            self._kept.clear()
            self._topics.clear()
            self._version = self.acls.version

    def verdict(self, client: Client, operation: AclOperation, resource: Resource) -> Verdict:
        """The same as `allows`, with what decides it."""
        return decide(self.acls, self.rules, client, operation, resource)
