"""What a schema is made of before anybody has looked into its text."""

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
    """A document is not made as it has to be."""


class Level(StrEnum):
    """How a schema has to go with those before it."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def reads_old(self) -> bool:
        """Whether the new schema has to read what was written with those before it."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def is_read_by_old(self) -> bool:
        """Whether those before it have to read what is written with the new schema."""
        return self.startswith(("FORWARD", "FULL"))

    @property
    def is_transitive(self) -> bool:
        """Whether that holds for all versions, and not for the latest one alone."""
        return self.endswith("_TRANSITIVE")


class Mode(StrEnum):
    """What may be done with a subject."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"


class Reference(NamedTuple):
    """Another schema that one needs: by which name, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Content:
    """Everything by which two schemas are the same or not.

    `metadata` and `rule_set` are kept as JSON: the registry hands them out and knows nothing of them.
    """

    type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None

    @property
    def guid(self) -> str:
        """Its name in every registry that makes it from the same content."""
        parts = [self.type, self.text, *map(repr, self.references), self.metadata, self.rule_set]
        digest = hashlib.md5(usedforsecurity=False)
        for each in parts:
            digest.update((each or "").encode("utf-8", "surrogatepass") + b"\0")
        return str(uuid.UUID(bytes=digest.digest(), version=3))

    def document(self) -> dict[str, object]:
        """As clients are told of it; what is the default is left out."""
        told: dict[str, object] = {"schema": self.text}
        if self.type != AVRO:
            told["schemaType"] = self.type
        if self.references:
            told["references"] = [each._asdict() for each in self.references]
        if self.metadata is not None:
            told["metadata"] = json.loads(self.metadata)
        if self.rule_set is not None:
            told["ruleSet"] = json.loads(self.rule_set)
        return told


def content_of(document: Mapping[str, object]) -> Content:
    """What a client or a record says. Raises Malformed for what it cannot be."""
    text, kind = document.get("schema"), document.get("schemaType") or AVRO
    if not isinstance(text, str) or not isinstance(kind, str):
        raise Malformed("schema and schemaType are texts")
    listed = document.get("references") or []
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise Malformed("references are a list")
    return Content(
        kind.upper(),
        text,
        tuple(map(_reference_of, listed)),
        _kept(document.get("metadata")),
        _kept(document.get("ruleSet")),
    )


def _reference_of(row: object) -> Reference:
    if not isinstance(row, Mapping):
        raise Malformed("a reference has a name, a subject and a version")
    name, subject, version = row.get("name"), row.get("subject"), row.get("version")
    if not isinstance(name, str) or not isinstance(subject, str) or type(version) is not int:
        raise Malformed("a reference has a name, a subject and a version")
    return Reference(name, subject, version)


def _kept(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Malformed("metadata and ruleSet are objects")
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
