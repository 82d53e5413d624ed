"""Decoder of record keys and values by the schemas of one node, for the console."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kbroker.security.acls import Resource
from kbroker.web.console.schemas import Mismatch

from .access import ALL_SCHEMAS
from .core.errors import RegistryError
from .core.formats import Texts, referred_texts
from .core.store import Registered
from .core.values import Content
from .core.work import Encode, Mismatched
from .frame_decoder import DecodingOptions, FoundSchema, FrameDecoder
from .topic import SchemaTopic
from .workers import SchemaWorkers

# Maximum seconds for which a request of the console waits for the newest registrations.
CATCH_UP_SECONDS = 1
# Maximum bytes of a key or a value.
BYTES_MAX = 256 * 1024
# Maximum number of decoding steps for a key or a value; each takes about a microsecond.
STEPS_MAX = 50_000
# Maximum number of characters of a schema with all its references.
TEXT_MAX = 256 * 1024
# Maximum number of characters of the schemas in the cache of parsed schemas.
KEPT_MAX = 2 * 1024 * 1024
CONSOLE = DecodingOptions("console", BYTES_MAX, STEPS_MAX, TEXT_MAX, KEPT_MAX)


class SchemaDecoder(FrameDecoder):
    """Decodes data by the schemas of one node; implements `kbroker.web.console.schemas.Schemas`."""

    def __init__(self, topic: SchemaTopic, workers: SchemaWorkers) -> None:
        super().__init__(_TopicSchemas(topic), workers, CONSOLE)
        self._topic = topic
        self._workers = workers

    @property
    def resource(self) -> Resource:
        """Topic that stores the schemas."""
        return ALL_SCHEMAS

    async def encoded(
        self, documents: Sequence[bytes], subject: str, version: int
    ) -> list[bytes] | Mismatch:
        """Implement `Schemas.encoded`."""
        try:
            found = self._topic.store.version(subject, version)
            texts = referred_texts(self._topic.store, found.content)
            task = Encode(found.content, texts, tuple(documents), found.id)
            encoded = await self._workers.encoded(task, CONSOLE.client)
        except RegistryError as error:
            return Mismatch(None, f"subject {subject}, version {version}: {error.message}")
        if isinstance(encoded, Mismatched):
            return Mismatch(encoded.position, encoded.reason)
        return list(encoded)

    async def catch_up(self) -> None:
        """Read the newest registrations; give up without an error after `CATCH_UP_SECONDS`."""
        with trio.move_on_after(CATCH_UP_SECONDS):
            try:
                await self._topic.catch_up()
            except RegistryError:
                return


class _TopicSchemas:
    """Schemas that a node has read from the topic; implements `SchemaSource`."""

    def __init__(self, topic: SchemaTopic) -> None:
        self._topic = topic

    async def find(self, identifier: int | str, subject: str) -> FoundSchema:
        store = self._topic.store
        schema_id = identifier
        if isinstance(schema_id, str):
            schema_id = store.ids_of_guid(schema_id)[0]
        version = store.preferred_version(schema_id, subject)
        return FoundSchema(version.content, _describe(version))

    async def texts(self, content: Content) -> Texts:
        return referred_texts(self._topic.store, content)

    def has_texts(self, content: Content, texts: Texts) -> bool:
        """Compare with the current texts: a version may be deleted for good and registered again."""
        if not content.references:
            return True
        try:
            return referred_texts(self._topic.store, content) == texts
        except RegistryError:
            return False


def _describe(version: Registered) -> dict[str, object]:
    return {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        "type": version.content.type,
    }
