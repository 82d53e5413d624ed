"""Encoders for the schemas of a registry with Confluent's API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.client.errors import ClientError
from kbroker.client.schema_registry import Answer, SchemaError, SchemaRegistry, UnknownSchemaError
from kbroker.client.schema_subjects import SchemaSubjects

from .core.errors import RegistryError
from .core.value_writers import ValueWriter, writer_of
from .core.values import Malformed, content_of
from .remote import reference_texts


@dataclass(frozen=True, slots=True)
class SchemaChoice:
    """A schema with which values are encoded.

    Attributes:
        subject: Subject of the schema; empty if the schema is given by its ID.
        version: Version of the subject, or "latest".
        schema_id: ID of the schema; None if the schema is given by its subject.
        document: Schema to register under the subject first, in the form of a request; or None.
        message: Name of a Protobuf message; None for the first one.
    """

    subject: str = ""
    version: int | str = "latest"
    schema_id: int | None = None
    document: Mapping[str, object] | None = None
    message: str | None = None


def load_writer(registry: SchemaRegistry, choice: SchemaChoice) -> ValueWriter:
    """Return the encoder for a schema; blocks.

    Args:
        registry: Client of the registry.
        choice: The schema.

    Raises:
        ClientError: The schema cannot be loaded, registered or used.
    """
    try:
        answer = _answer(registry, choice)
        content = content_of(answer)
        schema_id = int(str(answer["id"]))
        body = writer_of(content, reference_texts(registry, answer), choice.message)
    except ModuleNotFoundError as error:
        raise ClientError(
            f"a package is missing ({error.name}): pip install 'kbroker[registry]'"
        ) from None
    except (SchemaError, UnknownSchemaError, RegistryError) as error:
        raise ClientError(f"{error}; `kbroker registry list` shows all subjects") from None
    except (Malformed, LookupError, ValueError) as error:
        raise ClientError(f"{registry.address} returned an invalid schema: {error}") from None
    name = f"{answer['subject']}:{answer['version']}, " if choice.subject else ""
    return ValueWriter(body, schema_id, f"schema {name}ID {schema_id} ({content.type})")


def _answer(registry: SchemaRegistry, choice: SchemaChoice) -> Answer:
    """Return the registry's response with the schema and its ID. Raises SchemaError."""
    if choice.schema_id is not None:
        return {**registry.any_schema(choice.schema_id), "id": choice.schema_id}
    version = choice.version
    if choice.document is not None:
        version = SchemaSubjects(registry).register(choice.subject, choice.document).version
    return registry.version(choice.subject, version)
