"""Keys and values of records, by the schemas of the registry: the console shows them."""

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
from .core.bytes_read import TooMuch, Unfit
from .core.errors import STORE_FAILED, RegistryError
from .core.formats import Texts, referred_texts
from .core.framing import Frame, frame_of
from .core.store import Registered
from .core.values import Content
from .core.values_read import Values, values_of
from .core.work import Vet
from .topic import SchemaTopic
from .workers import SchemaWorkers

Result = TypeVar("Result")

CLIENT = "console"
"""For whom schemas are read here."""
CATCH_UP_SECONDS = 1
"""How long a look at records waits for what others have registered."""
BYTES_MAX = 256 * 1024
"""Of a key or a value."""
STEPS_MAX = 50_000
"""Values in a key or a value, and about as many microseconds."""
IN_PLACE_BYTES, IN_PLACE_STEPS = 1024, 1_000
"""What is small is read in the event loop: a thread would take longer."""
TEXT_MAX = 256 * 1024
"""Characters of a schema with all that it refers to."""
KEPT_MAX = 2 * 1024 * 1024
"""Characters of the schemas that are kept as they were parsed."""


class SchemaDecoder:
    """Reads what was written with the schemas that one node knows; `kbroker.web.console.schemas.Schemas`."""

    def __init__(self, topic: SchemaTopic, workers: SchemaWorkers) -> None:
        self._topic = topic
        self._workers = workers
        self._threads = trio.CapacityLimiter(1)
        self._kept: OrderedDict[Content, tuple[Values | str, int]] = OrderedDict()
        """What reads values, or why nothing does; and the characters that it was made of."""
        self._size = 0

    @property
    def resource(self) -> Resource:
        """Topic that stores the schemas."""
        return ALL_SCHEMAS

    async def catch_up(self) -> None:
        """Know what is registered by now, if that can be had soon."""
        with trio.move_on_after(CATCH_UP_SECONDS):
            try:
                await self._topic.catch_up()
            except RegistryError:
                return

    async def decoded(self, data: bytes, header: bytes | None, subject: str) -> Decoded | None:
        """As the console asks for it."""
        frame = frame_of(data, header)
        if frame is None:
            return None
        store = self._topic.store
        try:
            known = frame.schema
            schema_id = store.ids_of_guid(known)[0] if isinstance(known, str) else known
            place = store.place_of(schema_id, subject)
        except RegistryError:
            if isinstance(frame.schema, str) and frame.indexes is None:
                return None  # many bytes begin with a one
            trouble = f"The registry knows no schema {frame.schema}."
            return Decoded(trouble=trouble, is_guess=frame.indexes is None)
        told = _told(place)
        if len(frame.body) > BYTES_MAX:
            trouble = f"It is not decoded: it has more than {BYTES_MAX // 1024} kB."
            return Decoded(told, trouble=trouble, is_too_large=True)
        values = await self._values(place.content)
        if isinstance(values, str):
            return Decoded(told, trouble=values)
        return await self._read(values, frame, told)

    async def _read(self, values: Values, frame: Frame, told: dict[str, object]) -> Decoded:
        if len(frame.body) <= IN_PLACE_BYTES:
            try:
                return _decoded(values, frame, told, IN_PLACE_STEPS)
            except TooMuch:
                pass
        work = partial(_decoded, values, frame, told, STEPS_MAX)
        try:
            return await self._in_thread(work)
        except TooMuch:
            trouble = f"It is not decoded: it stands for more than {STEPS_MAX} values."
            return Decoded(told, trouble=trouble, is_too_large=True)

    # -- schemas

    async def _values(self, content: Content) -> Values | str:
        kept = self._kept.get(content)
        if kept is not None:
            self._kept.move_to_end(content)
            return kept[0]
        try:
            texts = referred_texts(self._topic.store, content)
        except RegistryError as error:
            return _trouble(error)
        size = len(content.text) + sum(map(len, texts.values()))
        if size > TEXT_MAX:
            return f"Its schema is not read here: it has more than {TEXT_MAX // 1024} kB."
        try:
            made = await self._made(content, texts)
        except RegistryError as error:  # it may be read another time
            return _trouble(error)
        if content not in self._kept:
            self._kept[content] = made, size
            self._size += size
        while self._size > KEPT_MAX:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone
        return made

    async def _made(self, content: Content, texts: Texts) -> Values | str:
        """Return the decoder of a schema, after a worker process has parsed it within the limits.

        Raises RegistryError if there is no such process.
        """
        try:
            await self._workers.vet(Vet(content, texts), CLIENT)
        except RegistryError as error:
            if error.code == STORE_FAILED:
                raise
            return _trouble(error)
        return await self._in_thread(partial(_made, content, texts))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await run_in_thread(work, limiter=self._threads, abandon_on_cancel=True)


def _made(content: Content, texts: Texts) -> Values | str:
    try:
        return values_of(content, texts)
    except RegistryError as error:
        return _trouble(error)


def _trouble(error: RegistryError) -> str:
    return f"Its schema cannot be used: {error.message}."


def _decoded(values: Values, frame: Frame, told: dict[str, object], steps: int) -> Decoded:
    """Raises TooMuch."""
    try:
        found = values.read(frame, steps)
    except Unfit as error:
        return Decoded(told, trouble=f"The bytes do not fit their schema: {error}.")
    if found.message is not None:
        told = told | {"message": found.message}
    return Decoded(told, found.document, found.text)


def _told(place: Registered) -> dict[str, object]:
    return {
        "subject": place.subject,
        "version": place.version,
        "id": place.id,
        "type": place.content.type,
    }
