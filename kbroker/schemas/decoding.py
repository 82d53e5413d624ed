"""Decoder of record keys and values by registered schemas, for the console."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from kbroker.runtime.threads import run_in_thread
from kbroker.security.acls import Resource
from kbroker.web.console.schemas import Decoded

from .access import ALL_SCHEMAS
from .core.byte_reader import InvalidValue, LimitExceeded
from .core.errors import STORE_FAILED, RegistryError
from .core.formats import Texts, referred_texts
from .core.framing import Frame, frame_of
from .core.store import Registered
from .core.value_readers import Values, values_of
from .core.values import Content
from .core.work import Vet
from .topic import SchemaTopic
from .workers import SchemaWorkers

Result = TypeVar("Result")

# Client name for the fair order of worker tasks.
CLIENT = "console"
# Maximum seconds for which a request of the console waits for the newest registrations.
CATCH_UP_SECONDS = 1
# Maximum bytes of a key or a value.
BYTES_MAX = 256 * 1024
# Maximum number of decoding steps for a key or a value; each takes about a microsecond.
STEPS_MAX = 50_000
# Limits up to which data is decoded in the event loop, because a thread would take longer.
IN_PLACE_BYTES, IN_PLACE_STEPS = 1024, 1_000
# Maximum number of characters of a schema with all its references.
TEXT_MAX = 256 * 1024
# Maximum number of characters of the schemas in the cache of parsed schemas.
KEPT_MAX = 2 * 1024 * 1024


class SchemaDecoder:
    """Decodes data by the schemas of one node; implements `kbroker.web.console.schemas.Schemas`."""

    def __init__(self, topic: SchemaTopic, workers: SchemaWorkers) -> None:
        self._topic = topic
        self._workers = workers
        self._threads = trio.CapacityLimiter(1)
        # LRU cache: decoder or error message by schema, with the size of the schema in characters.
        self._kept: OrderedDict[Content, tuple[Values | str, int]] = OrderedDict()
        self._size = 0

    @property
    def resource(self) -> Resource:
        """Topic that stores the schemas."""
        return ALL_SCHEMAS

    async def catch_up(self) -> None:
        """Read the newest registrations; give up without an error after `CATCH_UP_SECONDS`."""
        with trio.move_on_after(CATCH_UP_SECONDS):
            try:
                await self._topic.catch_up()
            except RegistryError:
                return

    async def decoded(self, data: bytes, header: bytes | None, subject: str) -> Decoded | None:
        """Implement `Schemas.decoded`."""
        frame = frame_of(data, header)
        if frame is None:
            return None
        store = self._topic.store
        try:
            key = frame.schema
            schema_id = store.ids_of_guid(key)[0] if isinstance(key, str) else key
            version = store.preferred_version(schema_id, subject)
        except RegistryError:
            if isinstance(frame.schema, str) and frame.indexes is None:
                return None  # a leading 1 byte is common in data without a schema
            problem = f"Schema {frame.schema} is not in the registry."
            return Decoded(problem=problem, is_guess=frame.indexes is None)
        described = _describe(version)
        if len(frame.body) > BYTES_MAX:
            problem = f"Not decoded: larger than {BYTES_MAX // 1024} kB."
            return Decoded(described, problem=problem, is_too_large=True)
        values = await self._values(version.content)
        if isinstance(values, str):
            return Decoded(described, problem=values)
        return await self._read(values, frame, described)

    async def _read(self, values: Values, frame: Frame, described: dict[str, object]) -> Decoded:
        if len(frame.body) <= IN_PLACE_BYTES:
            try:
                return _decode(values, frame, described, IN_PLACE_STEPS)
            except LimitExceeded:
                pass
        work = partial(_decode, values, frame, described, STEPS_MAX)
        try:
            return await self._run_in_thread(work)
        except LimitExceeded:
            problem = f"Not decoded: it contains more than {STEPS_MAX} values."
            return Decoded(described, problem=problem, is_too_large=True)

    # -- schemas

    async def _values(self, content: Content) -> Values | str:
        kept = self._kept.get(content)
        if kept is not None:
            self._kept.move_to_end(content)
            return kept[0]
        try:
            texts = referred_texts(self._topic.store, content)
        except RegistryError as error:
            return _schema_problem(error)
        size = len(content.text) + sum(map(len, texts.values()))
        if size > TEXT_MAX:
            return f"Not decoded: its schema is larger than {TEXT_MAX // 1024} kB."
        try:
            values = await self._create_values(content, texts)
        except RegistryError as error:  # not cached: a later attempt may succeed
            return _schema_problem(error)
        if content not in self._kept:
            self._kept[content] = values, size
            self._size += size
        while self._size > KEPT_MAX:
            _, (_, removed_size) = self._kept.popitem(last=False)
            self._size -= removed_size
        return values

    async def _create_values(self, content: Content, texts: Texts) -> Values | str:
        """Return the decoder of a schema, after a worker process has parsed it within the limits.

        Raises:
            RegistryError: No worker process could be started.
        """
        try:
            await self._workers.vet(Vet(content, texts), CLIENT)
        except RegistryError as error:
            if error.code == STORE_FAILED:
                raise
            return _schema_problem(error)
        return await self._run_in_thread(partial(_create_values, content, texts))

    async def _run_in_thread(self, work: Callable[[], Result]) -> Result:
        return await run_in_thread(work, limiter=self._threads, abandon_on_cancel=True)


def _create_values(content: Content, texts: Texts) -> Values | str:
    try:
        return values_of(content, texts)
    except RegistryError as error:
        return _schema_problem(error)


def _schema_problem(error: RegistryError) -> str:
    return f"The schema cannot be used: {error.message}."


def _decode(values: Values, frame: Frame, described: dict[str, object], steps: int) -> Decoded:
    """Decode a frame. Raises LimitExceeded."""
    try:
        found = values.read(frame, steps)
    except InvalidValue as error:
        return Decoded(described, problem=f"The data does not match its schema: {error}.")
    if found.message is not None:
        described = described | {"message": found.message}
    return Decoded(described, found.document, found.text)


def _describe(version: Registered) -> dict[str, object]:
    return {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        "type": version.content.type,
    }
