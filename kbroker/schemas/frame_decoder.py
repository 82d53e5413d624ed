"""Decoder of record keys and values by the schemas of a registry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import trio

from kbroker.client.decoded import Decoded
from kbroker.runtime.threads import run_in_thread

from .core.byte_reader import BytesText, InvalidValue, LimitExceeded, base64_text
from .core.errors import STORE_FAILED, RegistryError
from .core.formats import Texts
from .core.framing import Frame, frame_of
from .core.value_readers import Values, values_of
from .core.values import JSON, Content
from .core.work import Vet
from .workers import SchemaWorkers

Result = TypeVar("Result")

# Limits up to which data is decoded in the event loop, because a thread would take longer.
IN_PLACE_BYTES, IN_PLACE_STEPS = 1024, 1_000


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """Limits of a decoder, and the form of its values.

    Attributes:
        client: Client name for the fair order of worker tasks.
        bytes_max: Maximum bytes of a key or a value.
        steps_max: Maximum number of decoding steps for a key or a value; each takes about a
            microsecond.
        text_max: Maximum number of characters of a schema with all its references.
        kept_max: Maximum number of characters of the schemas in the cache of parsed schemas.
        avro_bytes: Converts Avro's bytes and fixed to text.
    """

    client: str
    bytes_max: int
    steps_max: int
    text_max: int
    kept_max: int
    avro_bytes: BytesText = base64_text


class FoundSchema(NamedTuple):
    """A schema of a registry, with the fields that describe it to users."""

    content: Content
    described: Mapping[str, object]


class SchemaSource(Protocol):
    """Registry in which a decoder looks up schemas."""

    async def find(self, identifier: int | str, subject: str) -> FoundSchema:
        """Return a schema by its ID or GUID.

        Args:
            identifier: ID or GUID.
            subject: Preferred subject, if several subjects have the schema.

        Raises:
            RegistryError: No schema has this identifier, or `STORE_FAILED` without a response.
        """
        ...

    async def texts(self, content: Content) -> Texts:
        """Return the texts of direct and indirect references of a schema. Raises RegistryError."""
        ...

    def has_texts(self, content: Content, texts: Texts) -> bool:
        """Return True unless it is known that the references of a schema no longer have these texts.

        The method sends no requests.
        """
        ...


class _Kept(NamedTuple):
    """A cached decoder or error message.

    Attributes:
        values: The decoder, or the error message.
        texts: Texts of the references that it was created from.
        size: Number of characters of the schema and the texts.
    """

    values: Values | str
    texts: Texts
    size: int


class FrameDecoder:
    """Decoder of keys and values that start with the ID or GUID of their schema."""

    def __init__(
        self, source: SchemaSource, workers: SchemaWorkers, options: DecodingOptions
    ) -> None:
        self._source = source
        self._workers = workers
        self._options = options
        self._threads = trio.CapacityLimiter(1)
        # LRU cache by schema.
        self._kept: OrderedDict[Content, _Kept] = OrderedDict()
        self._size = 0

    async def decoded(self, data: bytes, header: bytes | None, subject: str) -> Decoded | None:
        """Decode a key or value; return None if it has no schema. Slow work runs in a thread.

        Args:
            data: The bytes.
            header: Value of the record's schema ID header, if any.
            subject: Preferred subject, if several subjects have the schema.
        """
        frame = frame_of(data, header)
        if frame is None:
            return None
        try:
            found = await self._source.find(frame.schema, subject)
        except RegistryError as error:
            if isinstance(frame.schema, str) and frame.indexes is None:
                return None  # a leading 1 byte is common in data without a schema
            if error.code == STORE_FAILED:
                return Decoded(problem=f"Not decoded: {error.message}.")
            problem = f"Schema {frame.schema} is not in the registry."
            return Decoded(problem=problem, is_guess=frame.indexes is None)
        if len(frame.body) > self._options.bytes_max:
            problem = f"Not decoded: larger than {self._options.bytes_max // 1024} kB."
            return Decoded(found.described, problem=problem, is_too_large=True)
        values = await self._values(found.content)
        if isinstance(values, str):
            return Decoded(found.described, problem=values)
        return await self._read(values, frame, found.described)

    async def _read(self, values: Values, frame: Frame, described: Mapping[str, object]) -> Decoded:
        if len(frame.body) <= IN_PLACE_BYTES:
            try:
                return _decode(values, frame, described, IN_PLACE_STEPS)
            except LimitExceeded:
                pass
        steps_max = self._options.steps_max
        try:
            return await self._run_in_thread(partial(_decode, values, frame, described, steps_max))
        except LimitExceeded:
            problem = f"Not decoded: it contains more than {steps_max} values."
            return Decoded(described, problem=problem, is_too_large=True)

    # -- schemas

    async def _values(self, content: Content) -> Values | str:
        kept = self._kept.get(content)
        if kept is not None and self._source.has_texts(content, kept.texts):
            self._kept.move_to_end(content)
            return kept.values
        try:
            texts = await self._source.texts(content)
        except RegistryError as error:
            return _schema_problem(error)
        size = len(content.text) + sum(map(len, texts.values()))
        if size > self._options.text_max:
            return f"Not decoded: its schema is larger than {self._options.text_max // 1024} kB."
        try:
            values = await self._create_values(content, texts)
        except RegistryError as error:  # not cached: a later attempt may succeed
            return _schema_problem(error)
        self._keep(content, _Kept(values, texts, size))
        return values

    def _keep(self, content: Content, new: _Kept) -> None:
        """Add a decoder to the cache; it replaces a decoder for other texts of the references."""
        outdated = self._kept.pop(content, None)
        self._size += new.size - (outdated.size if outdated else 0)
        self._kept[content] = new
        while self._size > self._options.kept_max:
            _, removed = self._kept.popitem(last=False)
            self._size -= removed.size

    async def _create_values(self, content: Content, texts: Texts) -> Values | str:
        """Return the decoder of a schema, after a worker process has parsed it within the limits.

        Raises:
            RegistryError: No worker process could be started.
        """
        avro_bytes = self._options.avro_bytes
        try:
            if content.type != JSON:  # whose decoder does not parse the schema
                await self._workers.vet(Vet(content, texts), self._options.client)
        except RegistryError as error:
            if error.code == STORE_FAILED:
                raise
            return _schema_problem(error)
        return await self._run_in_thread(partial(_create_values, content, texts, avro_bytes))

    async def _run_in_thread(self, work: Callable[[], Result]) -> Result:
        return await run_in_thread(work, limiter=self._threads, abandon_on_cancel=True)


def _create_values(content: Content, texts: Texts, avro_bytes: BytesText) -> Values | str:
    try:
        return values_of(content, texts, avro_bytes)
    except RegistryError as error:
        return _schema_problem(error)


def _schema_problem(error: RegistryError) -> str:
    return f"The schema cannot be used: {error.message}."


def _decode(values: Values, frame: Frame, described: Mapping[str, object], steps: int) -> Decoded:
    """Decode a frame. Raises LimitExceeded."""
    try:
        found = values.read(frame, steps)
    except InvalidValue as error:
        return Decoded(described, problem=f"The data does not match its schema: {error}.")
    if found.message is not None:
        described = {**described, "message": found.message}
    return Decoded(described, found.document, found.text)
