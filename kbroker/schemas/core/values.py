"""Value types of the registry: unparsed schemas, compatibility levels and modes."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
TYPES = (JSON, PROTOBUF, AVRO)


class Malformed(ValueError):
    """A document has a wrong structure."""


class Level(StrEnum):
    """Compatibility level of a subject."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def reads_old(self) -> bool:
        """True if the new schema must read data of earlier versions."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def is_read_by_old(self) -> bool:
        """True if earlier versions must read data of the new schema."""
        return self.startswith(("FORWARD", "FULL"))

    @property
    def is_transitive(self) -> bool:
        """True if the level applies to all earlier versions, not only to the latest."""
        return self.endswith("_TRANSITIVE")


class Mode(StrEnum):
    """Operations that a subject permits."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"


class Reference(NamedTuple):
    """A reference to another registered schema."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Content:
    """A schema as registered. Two equal contents are the same schema.

    `metadata` and `rule_set` are opaque JSON that the registry only stores and returns.
    """

    type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None

    @property
    def guid(self) -> str:
        """GUID derived from the content; equal in every registry."""
        parts = [self.type, self.text, *map(repr, self.references), self.metadata, self.rule_set]
        digest = hashlib.md5(usedforsecurity=False)
        for each in parts:
            digest.update((each or "").encode("utf-8", "surrogatepass") + b"\0")
        return str(uuid.UUID(bytes=digest.digest(), version=3))

    def document(self) -> dict[str, object]:
        """Return the JSON fields that clients receive; defaults are omitted."""
        document: dict[str, object] = {"schema": self.text}
        if self.type != AVRO:
            document["schemaType"] = self.type
        if self.references:
            document["references"] = [each._asdict() for each in self.references]
        if self.metadata is not None:
            document["metadata"] = json.loads(self.metadata)
        if self.rule_set is not None:
            document["ruleSet"] = json.loads(self.rule_set)
        return document


def content_of(document: Mapping[str, object]) -> Content:
    """Parse a schema from a request or a record. Raises Malformed."""
    text, kind = document.get("schema"), document.get("schemaType") or AVRO
    if not isinstance(text, str) or not isinstance(kind, str):
        raise Malformed("schema and schemaType must be strings")
    references = document.get("references") or []
    if not isinstance(references, Sequence) or isinstance(references, str):
        raise Malformed("references must be a list")
    return Content(
        kind.upper(),
        text,
        tuple(map(_reference_of, references)),
        _to_sorted_json(document.get("metadata")),
        _to_sorted_json(document.get("ruleSet")),
    )


def _reference_of(row: object) -> Reference:
    if not isinstance(row, Mapping):
        raise Malformed("a reference must have a name, a subject and a version")
    name, subject, version = row.get("name"), row.get("subject"), row.get("version")
    if not isinstance(name, str) or not isinstance(subject, str) or type(version) is not int:
        raise Malformed("a reference must have a name, a subject and a version")
    return Reference(name, subject, version)


def _to_sorted_json(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Malformed("metadata and ruleSet must be objects")
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
