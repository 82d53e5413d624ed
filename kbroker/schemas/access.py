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
        return {**scope, _CLIENT: Client(caller.principal, host)}

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
        resource = ALL_SCHEMAS
        if subject is not None and operation is not AclOperation.READ:
            resource = Resource(AclResourceType.TOPIC, topic_of(subject))
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


def topic_of(subject: str) -> str:
    """Return the topic that a subject belongs to."""
    for suffix in ("-key", "-value"):
        if subject.endswith(suffix):
            return subject.removesuffix(suffix)
    return subject
