"""Calls of the registry: who may make them, and how they read and write what a node knows."""

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
    """Lets requests read and write the registry, if their clients may do so."""

    def __init__(self, topic: SchemaTopic, access: Access) -> None:
        self._topic = topic
        self._access = access
        self._is_read = False

    @property
    def store(self) -> SchemaStore:
        """The schemas and settings that this node has read."""
        return self._topic.store

    def allowed(self, operation: AclOperation, call: Call) -> Call:
        """Return a call that checks the permission for the subject of the request, or for all subjects."""

        async def checked(request: Request) -> object:
            self._access.check(request, operation, subject_of(request))
            return await call(request)

        return checked

    def look(self, call: Callable[[Request], object]) -> Call:
        """Return a call that reads. It needs the permission to read."""

        async def looked(request: Request) -> object:
            return await self.looking(partial(call, request))

        return self.allowed(AclOperation.READ, looked)

    async def looking(self, call: Callable[[], T]) -> T:
        """Read. What this node does not know may have been written elsewhere just now.

        Raises:
            RegistryError: As raised by `call`, also after all that is written was read.
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
        """Read the topic before the first call."""
        if not self._is_read:
            await self._topic.catch_up()
            self._is_read = True

    async def write(self, plan: Plan[T]) -> T:
        """Write, unless there is nothing to be written. Raises RegistryError."""
        await self.first_read()
        try:
            planned = plan(self.store)
            if not planned.entries:
                return planned.answer
        except RegistryError:
            pass  # what is newest decides
        return await self._topic.write(plan)
