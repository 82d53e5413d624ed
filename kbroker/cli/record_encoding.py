"""Encoding of keys and values for `kbroker topic produce`, with schemas of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from kbroker.client.errors import ClientError
from kbroker.schemas.core.value_writing import Mismatch
from kbroker.schemas.encoding import SchemaChoice, load_writer

from .schema_files import document_of

if TYPE_CHECKING:
    from kbroker.client.ndjson import Line, LineSchema
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.schemas.core.value_writers import ValueWriter

# Maximum number of schemas that lines may name by ID.
SCHEMAS_MAX = 1_000


def parse_choice(text: str, topic: str | None, part: str) -> SchemaChoice:
    """Return the schema that `--key-schema` or `--value-schema` selects.

    Args:
        text: SUBJECT, SUBJECT:VERSION, an ID or @FILE; each may end with #MESSAGE.
        topic: Topic of the command, for the subject of a file.
        part: "key" or "value".

    Raises:
        UsageError: The file cannot be read, or no topic is given for its subject.
        BadParameter: The text is empty.
    """
    name, separator, message = text.partition("#")
    option = f"--{part}-schema"
    if not name or (separator and not message):
        raise click.BadParameter(f"invalid {text!r}; expected SUBJECT[:VERSION]", param_hint=option)
    choice = SchemaChoice(message=message or None)
    if name.startswith("@"):
        if topic is None:
            raise click.UsageError(f"{option} @FILE needs a topic; use kbroker topic produce NAME")
        path = Path(name[1:])
        with path.open("rb") as file:
            return replace(choice, subject=f"{topic}-{part}", document=document_of(file, None, ()))
    if name.isdecimal():
        return replace(choice, schema_id=int(name))
    subject, _, version = name.rpartition(":")
    if subject and (version.isdecimal() or version == "latest"):
        number = int(version) if version.isdecimal() else version
        return replace(choice, subject=subject, version=number)
    return replace(choice, subject=name)


class RecordEncoder:
    """Encoder of keys and values.

    Args:
        registry: Client of the registry.
        choices: Schemas by part, "key" or "value"; others are named by the lines.
    """

    def __init__(self, registry: SchemaRegistry, choices: Mapping[str, SchemaChoice]) -> None:
        self._registry = registry
        self._choices = choices
        self._chosen: dict[str, ValueWriter] = {}  # by part
        self._named: dict[LineSchema, ValueWriter] = {}

    async def encode(self, line: Line, number: int) -> Line:
        """Return a line with encoded key and value; nulls are unchanged.

        Args:
            line: The line.
            number: Number of the line, for messages.

        Raises:
            ClientError: The schema cannot be used, or a key or value does not match it.
        """
        record = line.record
        key = await self._part(record.key, "key", line.key_schema, number)
        value = await self._part(record.value, "value", line.value_schema, number)
        return line._replace(record=record._replace(key=key, value=value))

    async def _part(
        self, data: bytes | None, part: str, named: LineSchema | None, number: int
    ) -> bytes | None:
        if data is None or (part not in self._choices and named is None):
            return data
        writer = await self._writer(part, named)
        try:
            return writer.encode(data)
        except Mismatch as error:
            raise ClientError(
                f"line {number}: the {part} does not match {writer.description}: {error}; correct "
                f"the line, or name another schema with --{part}-schema"
            ) from None

    async def _writer(self, part: str, named: LineSchema | None) -> ValueWriter:
        """Return the encoder that the options select, or else that of the line."""
        if part in self._choices:
            if part not in self._chosen:
                self._chosen[part] = await self._load(self._choices[part])
            return self._chosen[part]
        assert named is not None
        if named not in self._named:
            if len(self._named) >= SCHEMAS_MAX:
                raise ClientError(
                    f"the lines name more than {SCHEMAS_MAX} schemas; split the input"
                )
            choice = SchemaChoice(schema_id=named.id, message=named.message)
            self._named[named] = await self._load(choice)
        return self._named[named]

    async def _load(self, choice: SchemaChoice) -> ValueWriter:
        return await trio.to_thread.run_sync(
            partial(load_writer, self._registry, choice), abandon_on_cancel=True
        )
