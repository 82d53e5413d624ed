"""Authorized calls of the registry: reads and writes of a node's schema store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from kbroker.security.acls import AclOperation

from .access import Access
from .answers import Call
from .core.errors import RegistryError
from .core.store import SchemaStore
from .requests import NOT_FOUND, subject_of
from .topic import Plan, SchemaTopic

T = TypeVar("T")


class Calls:
    """Runs the reads and writes of requests after checking the client's permission."""

    def __init__(self, topic: SchemaTopic, access: Access) -> None:
        self._topic = topic
        self._access = access
        self._is_read = False

    @property
    def store(self) -> SchemaStore:
        """Schemas and settings that this node has read."""
        return self._topic.store

    def allowed(self, operation: AclOperation, call: Call) -> Call:
        """Return a call that first checks a permission.

        Args:
            operation: Operation to check on the request's subject, or on all subjects.
            call: The call to run if the client has the permission.
        """

        async def checked(request: Request) -> object:
            self._access.check(request, operation, subject_of(request))
            return await call(request)

        return checked

    def reading_call(self, call: Callable[[Request], object]) -> Call:
        """Return a read call that requires the READ permission."""

        async def looked(request: Request) -> object:
            return await self.read(partial(call, request))

        return self.allowed(AclOperation.READ, looked)

    async def read(self, call: Callable[[], T]) -> T:
        """Run a read; if its result is not found, catch up with the topic and run it again.

        Raises:
            RegistryError: `call` raised it, even after catching up.
        """
        await self.first_read()
        try:
            return call()
        except RegistryError as error:
            if error.status != NOT_FOUND:
                raise
        await self._topic.catch_up()
        return call()

    async def first_read(self) -> None:
        """Read the whole topic before the first call."""
        if not self._is_read:
            await self._topic.catch_up()
            self._is_read = True

    async def write(self, plan: Plan[T]) -> T:
        """Write the records of a plan, if it has any. Raises RegistryError."""
        await self.first_read()
        try:
            planned = plan(self.store)
            if not planned.entries:
                return planned.answer
        except RegistryError:
            pass  # the newest state decides, see below
        return await self._topic.write(plan)
