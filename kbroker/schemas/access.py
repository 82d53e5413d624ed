"""Who may ask a registry for what: the users of the broker, by its ACLs.

A subject belongs to a topic: `orders-value` and `orders-key` to `orders`, any other one to the topic of its own
name. Who may read the topic of the schemas reads all of them. Something is changed by who may do the like
with the topic of the subject, or with that of the schemas; what holds for all subjects is of the latter.
"""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.types import Scope

from kbroker.broker.local_node import LocalNode
from kbroker.security.acls import AclOperation, AclResourceType, Client, Resource
from kbroker.security.audit import NAME_CHARACTERS_MAX, audit_logger
from kbroker.web.logins import Logins, NotLetIn, Surface

from .core.errors import DENIED, RegistryError
from .topic import TOPIC

API = "SchemaRegistry"
"""What is asked, as the audit log names it."""
_CLIENT = "kbroker.client"
"""Who asks: in the scope of a request."""
ALL_SCHEMAS = Resource(AclResourceType.TOPIC, TOPIC)
"""Topic of the schemas: a client that may READ it may see all schemas."""


class Access:
    """To what one node serves."""

    def __init__(self, local: LocalNode, surface: Surface) -> None:
        self._local = local
        self._logins = Logins(local, surface)

    async def let_in(self, scope: Scope) -> Scope:
        """The scope of a request with who asks in it. Raises RegistryError for somebody unknown."""
        request = Request(scope)
        host = request.client.host if request.client else ""
        try:
            caller = await self._logins.caller(request.headers.get("authorization", ""), host)
        except NotLetIn as error:
            raise RegistryError(error.status, str(error), error.headers) from None
        return {**scope, _CLIENT: Client(caller.principal, host)}

    def check(self, request: Request, operation: AclOperation, subject: str | None) -> None:
        """Raise RegistryError where who asks may not do something with a subject; None is all of them."""
        authorizer = self._local.node.authorizer
        if authorizer is None:
            return
        client: Client = request.scope[_CLIENT]
        resource = ALL_SCHEMAS
        if subject is not None and operation is not AclOperation.READ:
            resource = Resource(AclResourceType.TOPIC, topic_of(subject))
        found = (
            each for each in (resource, ALL_SCHEMAS) if authorizer.allows(client, operation, each)
        )
        allowed = next(found, None)
        level = logging.INFO if allowed is None else logging.DEBUG
        if audit_logger.isEnabledFor(level):
            told = allowed or resource
            self._local.node.audit.log_decision(
                authorizer.verdict(client, operation, told),
                client,
                operation,
                told,
                level,
                api=API,
                version=request.method,
                client_id=request.headers.get("user-agent", "")[:NAME_CHARACTERS_MAX],
            )
        if allowed is None:
            raise RegistryError(DENIED, f"{client.principal} may not {operation.name} {resource}")


def topic_of(subject: str) -> str:
    """The topic that a subject belongs to."""
    for end in ("-key", "-value"):
        if subject.endswith(end):
            return subject.removesuffix(end)
    return subject
