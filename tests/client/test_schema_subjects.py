"""Subjects of registries that respond differently from Confluent's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kbroker.client.schema_registry import SchemaRegistry
from kbroker.client.schema_subjects import SchemaSubjects


class TypelessRegistry(SchemaRegistry):
    """A registry that does not repeat the type of a schema, such as Apicurio's."""

    def ask(
        self, path: str, *, method: str = "GET", body: Mapping[str, object] | None = None
    ) -> object:
        """Return version 1 of the subject."""
        return {"subject": "s", "version": 1, "id": 7, "schema": (body or {}).get("schema")}


@pytest.mark.parametrize("kind", ["PROTOBUF", "JSON", None])
def test_registered_schema_has_requested_type(kind: str | None) -> None:
    document = {"schema": "x"} if kind is None else {"schema": "x", "schemaType": kind}
    subjects = SchemaSubjects(TypelessRegistry("http://registry"))
    for found in (subjects.register("s", document), subjects.registered("s", document)):
        assert found is not None
        assert (found.id, found.type) == (7, kind or "AVRO")
