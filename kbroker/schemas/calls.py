"""Authorization of registry requests, and their reads and writes of a node's schema store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from kbroker.security.acls import AclOperation

from .access import Access
from .answers import Call
from .core.errors import RegistryError
from .core.registry import WritePlan
from .core.store import SchemaStore
from .requests import NOT_FOUND, subject_of
from .topic import Plan, SchemaTopic

T = TypeVar("T")
# Scope key that holds the operation that a request needs.
_OPERATION = "kbroker.operation"


class AuthorizedCalls:
    """Reads and writes of one node's registry, with a permission check before each.

    Args:
        topic: The `_schemas` topic and the schemas that the node has read from it.
        access: Permissions of clients.
    """

    def __init__(self, topic: SchemaTopic, access: Access) -> None:
        self._topic = topic
        self._access = access
        # Store of which everything is read; the topic replaces it when it discards its state.
        self._read_store: SchemaStore | None = None

    @property
    def store(self) -> SchemaStore:
        """Schemas and settings that this node has read."""
        return self._topic.store

    def with_permission(self, operation: AclOperation, call: Call) -> Call:
        """Return a call that checks a permission and then runs another call.

        Args:
            operation: Operation that the client must be allowed on the request's subject, or on all
                subjects if the request names none.
            call: The call to run if the client has the permission.
        """

        async def check_and_run(request: Request) -> object:
            self._access.check(request, operation, subject_of(request))
            request.scope[_OPERATION] = operation
            return await call(request)

        return check_and_run

    def read_call(self, call: Callable[[Request], object]) -> Call:
        """Return a call that checks the READ permission, then reads; see `read`."""

        async def read(request: Request) -> object:
            return await self.read(partial(call, request))

        return self.with_permission(AclOperation.READ, read)

    async def read(self, call: Callable[[], T]) -> T:
        """Run a read. If `call` raises NOT_FOUND, read new records of the topic and run `call` again.

        Raises:
            RegistryError: The last run of `call` raised this error.
        """
        await self.ensure_read()
        try:
            return call()
        except RegistryError as error:
            if error.status != NOT_FOUND:
                raise
        await self.catch_up()
        return call()

    async def catch_up(self) -> None:
        """Read new records of the topic."""
        await self._topic.catch_up()

    async def ensure_read(self) -> None:
        """Read the whole topic, unless an earlier call has done so."""
        if self._read_store is not self._topic.store:
            await self._topic.catch_up()
            self._read_store = self._topic.store

    async def write(self, request: Request, plan: Plan[T]) -> T:
        """Write the records of a plan, if it has any.

        Args:
            request: Request of a call from `with_permission`. Its permission is checked again before
                the records are written: the ACLs may have changed while the request waited for its
                body, its check or other writers.
            plan: Returns the records to write and the response, from the current schemas.

        Returns:
            The response.

        Raises:
            RegistryError: The plan is invalid for the newest schemas, or cannot be written, or the
                client lost the permission.
        """

        def permitted_plan(store: SchemaStore) -> WritePlan[T]:
            self._access.check_again(request, request.scope[_OPERATION], subject_of(request))
            return plan(store)

        await self.ensure_read()
        try:
            planned = plan(self.store)
            if not planned.entries:
                return planned.response
        except RegistryError:
            pass  # the schemas may be stale: `SchemaTopic.write` runs the plan on the newest ones
        return await self._topic.write(permitted_plan)
