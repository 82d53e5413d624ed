"""Authentication and authorization of registry requests with the broker's users and ACLs.

A subject belongs to a topic: `orders-value` and `orders-key` to `orders`, any other subject to the
topic with the same name. READ on the topic `_schemas` permits reading all schemas. Any other operation
needs its permission on the subject's topic or on `_schemas`. Changes of global settings need the
permission on `_schemas`.
"""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.types import Scope

from kbroker.broker.local_node import LocalNode
from kbroker.security.acls import AclOperation, AclResourceType, Client, Resource
from kbroker.security.audit import NAME_CHARACTERS_MAX, audit_logger
from kbroker.web.logins import HttpAuthenticator, HttpInterface, Unauthenticated

from .core.errors import DENIED, RegistryError
from .topic import TOPIC

# API name of registry requests in the audit log.
API = "SchemaRegistry"
# Scope key that holds the client of a request.
_CLIENT = "kbroker.client"
# Topic of the schemas: a client with READ on it may read all schemas.
ALL_SCHEMAS = Resource(AclResourceType.TOPIC, TOPIC)


class Access:
    """Access control of one node's registry."""

    def __init__(self, local: LocalNode, interface: HttpInterface) -> None:
        self._local = local
        self._logins = HttpAuthenticator(local, interface)

    async def authenticate(self, scope: Scope) -> Scope:
        """Return the scope with the authenticated client added.

        Args:
            scope: ASGI scope of an HTTP request.

        Raises:
            RegistryError: Authentication failed.
        """
        request = Request(scope)
        host = request.client.host if request.client else ""
        try:
            caller = await self._logins.caller(request.headers.get("authorization", ""), host)
        except Unauthenticated as error:
            raise RegistryError(error.status, str(error), error.headers) from None
        return self.scope_of(scope, Client(caller.principal, host))

    def scope_of(self, scope: Scope, client: Client) -> Scope:
        """Return the ASGI scope of a request with an authenticated client added."""
        return {**scope, _CLIENT: client}

    def allows(self, client: Client, operation: AclOperation, subject: str | None) -> bool:
        """Return True if a client has a permission for a subject, or for all subjects (None)."""
        authorizer = self._local.node.authorizer
        return authorizer is None or any(
            authorizer.allows(client, operation, each)
            for each in (_resource_of(operation, subject), ALL_SCHEMAS)
        )

    def check(self, request: Request, operation: AclOperation, subject: str | None) -> None:
        """Check the client's permission for a subject and write the decision to the audit log.

        Args:
            request: An authenticated request.
            operation: The ACL operation that the call needs.
            subject: Subject of the request, or None for all subjects.

        Raises:
            RegistryError: The client lacks the permission.
        """
        authorizer = self._local.node.authorizer
        if authorizer is None:
            return
        client: Client = request.scope[_CLIENT]
        resource = _resource_of(operation, subject)
        sufficient = (
            each for each in (resource, ALL_SCHEMAS) if authorizer.allows(client, operation, each)
        )
        allowed = next(sufficient, None)
        level = logging.INFO if allowed is None else logging.DEBUG
        if audit_logger.isEnabledFor(level):
            audited = allowed or resource
            self._local.node.audit.log_decision(
                authorizer.verdict(client, operation, audited),
                client,
                operation,
                audited,
                level,
                api=API,
                version=request.method,
                client_id=request.headers.get("user-agent", "")[:NAME_CHARACTERS_MAX],
            )
        if allowed is None:
            raise RegistryError(DENIED, f"{client.principal} may not {operation.name} {resource}")

    def check_again(self, request: Request, operation: AclOperation, subject: str | None) -> None:
        """Check a permission that `check` has granted; the audit log gets only a denial.

        Raises:
            RegistryError: The client has lost the permission.
        """
        if not self.allows(request.scope[_CLIENT], operation, subject):
            self.check(request, operation, subject)


def _resource_of(operation: AclOperation, subject: str | None) -> Resource:
    """Return the topic on which a client needs a permission, unless it has it on `_schemas`."""
    if subject is None or operation is AclOperation.READ:
        return ALL_SCHEMAS
    return Resource(AclResourceType.TOPIC, topic_of(subject))


def topic_of(subject: str) -> str:
    """Return the topic that a subject belongs to."""
    for suffix in ("-key", "-value"):
        if subject.endswith(suffix):
            return subject.removesuffix(suffix)
    return subject
