"""Schemas of a registry with Confluent's API, looked up over HTTP."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

import trio

from kbroker.client.schema_registry import Answer, SchemaError, SchemaRegistry, UnknownSchemaError

from .core.errors import STORE_FAILED, RegistryError, invalid_schema, no_such_schema
from .core.formats import Texts
from .core.values import Content, Malformed, content_of
from .frame_decoder import FoundSchema

Result = TypeVar("Result")

# Maximum number of cached look-ups. Schemas have up to 1 MiB, so this is also a bound on memory.
LOOKUPS_MAX = 256
# Seconds after which an unsuccessful look-up is repeated.
RETRY_SECONDS = 10.0


class RemoteSchemas:
    """Schemas of a registry; implements `frame_decoder.SchemaSource`.

    Schemas never change, so a look-up is repeated only if it was unsuccessful.

    Args:
        registry: Client of the registry.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        # Result by identifier; errors with the time (trio clock, s) of the look-up.
        self._found: OrderedDict[int | str, FoundSchema | tuple[RegistryError, float]] = (
            OrderedDict()
        )
        self._unreachable: tuple[RegistryError, float] | None = None

    async def find(self, identifier: int | str, subject: str) -> FoundSchema:
        """Implement `SchemaSource`; the subject has no effect."""
        for known in (self._found.get(identifier), self._unreachable):
            if isinstance(known, FoundSchema):
                return known
            if known is not None and trio.current_time() < known[1] + RETRY_SECONDS:
                # Without the traceback of the earlier raises, which would grow with each one.
                raise known[0].with_traceback(None)
        try:
            answer = await self._run(lambda: self._registry.any_schema(identifier))
            found = FoundSchema(_content(answer), _describe(identifier, answer))
        except RegistryError as error:
            if error.code == STORE_FAILED:
                self._unreachable = error, trio.current_time()
            else:
                self._keep(identifier, (error, trio.current_time()))
            raise
        self._keep(identifier, found)
        return found

    async def texts(self, content: Content) -> Texts:
        """Implement `SchemaSource`."""
        if not content.references:
            return {}
        document = content.document()
        return await self._run(lambda: reference_texts(self._registry, document))

    def has_texts(self, content: Content, texts: Texts) -> bool:
        """Implement `SchemaSource`: schemas do not change during a command."""
        return True

    def _keep(
        self, identifier: int | str, result: FoundSchema | tuple[RegistryError, float]
    ) -> None:
        self._found[identifier] = result
        self._found.move_to_end(identifier)
        if len(self._found) > LOOKUPS_MAX:
            self._found.popitem(last=False)

    async def _run(self, look_up: Callable[[], Result]) -> Result:
        """Run requests in a thread. Raises RegistryError."""
        try:
            return await trio.to_thread.run_sync(look_up, abandon_on_cancel=True)
        except UnknownSchemaError:
            raise no_such_schema() from None
        except SchemaError as error:
            raise RegistryError(STORE_FAILED, str(error)) from None


def reference_texts(registry: SchemaRegistry, answer: Mapping[str, object]) -> Texts:
    """Return the texts of direct and indirect references of a schema.

    Args:
        registry: Client of the registry.
        answer: Response of the registry with the schema.

    Raises:
        SchemaError: The registry does not respond, or there are too many references.
    """
    texts: dict[str, str] = {}
    for name, found in registry.referred(answer):
        # The first text of a name is used, as in `core.formats.referred_texts`.
        texts.setdefault(name, str(found.get("schema", "")))
    return texts


def _content(answer: Answer) -> Content:
    """Return the schema in a response. Raises RegistryError."""
    try:
        return content_of(answer)
    except Malformed as error:
        raise invalid_schema(str(error)) from None


def _describe(identifier: int | str, answer: Answer) -> dict[str, object]:
    kind = str(answer.get("schemaType") or "AVRO")
    name = "guid" if isinstance(identifier, str) else "id"
    return {name: identifier, "type": kind}
