"""JSON Schema compatibility: a case for each rule that Confluent documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.json_schema import JsonSchema
from kbroker.schemas.core.limits import Budget


def kinds(new: Any, old: Any) -> list[str]:
    """Return the reasons why a reader with the new schema rejects what the old one allows."""
    reader, writer = JsonSchema(json.dumps(new)), JsonSchema(json.dumps(old))
    return [each.kind for each in reader.differences(writer, Budget())]


def object_schema(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
OPEN = object_schema({"a": TEXT})
CLOSED = object_schema({"a": TEXT}, additionalProperties=False)
TEXTS = object_schema({"a": TEXT}, additionalProperties=TEXT)
REF = {"definitions": {"t": TEXT}, **object_schema({"a": {"$ref": "#/definitions/t"}})}
LIST = {"type": "array", "items": TEXT}
FITS: list[tuple[str, Any, Any]] = [
    ("the same", OPEN, OPEN),
    ("words about it", {**OPEN, "title": "t", "description": "d"}, OPEN),
    ("anything", {}, OPEN),
    ("a wider type", NUMBER, {"type": "integer"}),
    ("one more type", {"type": ["string", "null"]}, TEXT),
    ("a higher maximum", {**NUMBER, "maximum": 9}, {**NUMBER, "maximum": 8}),
    ("no maximum", NUMBER, {**NUMBER, "maximum": 8}),
    ("a lower minimum", {**NUMBER, "minimum": 1}, {**NUMBER, "minimum": 2}),
    ("a longer text", {**TEXT, "maxLength": 9}, {**TEXT, "maxLength": 8}),
    ("no pattern", TEXT, {**TEXT, "pattern": "x"}),
    ("a smaller step", {**NUMBER, "multipleOf": 2}, {**NUMBER, "multipleOf": 4}),
    ("more values", {"enum": ["a", "b"]}, {"enum": ["a"]}),
    ("less required", OPEN, {**OPEN, "required": ["a"]}),
    (
        "required with a default",
        object_schema({"a": {**TEXT, "default": ""}}, required=["a"]),
        OPEN,
    ),
    ("a property less, open", object_schema({}), OPEN),
    (
        "a property more, closed",
        object_schema({"a": TEXT, "b": NUMBER}, additionalProperties=False),
        CLOSED,
    ),
    (
        "a covered property more",
        object_schema({"a": TEXT, "b": TEXT}, additionalProperties=TEXT),
        TEXTS,
    ),
    ("a property of any kind more", object_schema({"a": TEXT, "b": {}}), OPEN),
    ("a covered property less", object_schema({}, additionalProperties=TEXT), TEXTS),
    ("opened", OPEN, CLOSED),
    ("a reference", OPEN, REF),
    ("by a reference", REF, OPEN),
    ("items of a wider type", {**LIST, "items": {"type": ["string", "null"]}}, LIST),
    ("one more choice", {"oneOf": [TEXT, NUMBER]}, {"oneOf": [TEXT]}),
    ("a choice of what was single", {"oneOf": [TEXT, NUMBER]}, TEXT),
    ("fewer parts", {"allOf": [OPEN]}, {"allOf": [OPEN, object_schema({"b": NUMBER})]}),
    ("less refused", {"not": TEXT}, {"not": {"type": ["string", "null"]}}),
    ("fewer dependencies", OPEN, {**OPEN, "dependencies": {"a": ["b"]}}),
]
REFUSES: list[tuple[str, Any, Any, str]] = [
    ("another type", NUMBER, TEXT, "TYPE_CHANGED"),
    ("a narrower type", {"type": "integer"}, NUMBER, "TYPE_CHANGED"),
    ("one type less", TEXT, {"type": ["string", "null"]}, "TYPE_NARROWED"),
    ("less than anything", TEXT, {}, "TYPE_NARROWED"),
    ("a lower maximum", {**NUMBER, "maximum": 7}, {**NUMBER, "maximum": 8}, "MAXIMUM_CHANGED"),
    ("a maximum", {**NUMBER, "maximum": 7}, NUMBER, "MAXIMUM_ADDED"),
    ("a longer minimum", {**TEXT, "minLength": 7}, {**TEXT, "minLength": 1}, "MIN_LENGTH_CHANGED"),
    ("a pattern", {**TEXT, "pattern": "x"}, TEXT, "PATTERN_ADDED"),
    (
        "another step",
        {**NUMBER, "multipleOf": 3},
        {**NUMBER, "multipleOf": 4},
        "MULTIPLE_OF_CHANGED",
    ),
    ("fewer values", {"enum": ["a"]}, {"enum": ["a", "b"]}, "ENUM_ARRAY_CHANGED"),
    ("more required", {**OPEN, "required": ["a"]}, OPEN, "REQUIRED_ATTRIBUTE_ADDED"),
    (
        "a property more, open",
        object_schema({"a": TEXT, "b": TEXT}),
        OPEN,
        "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
    ),
    (
        "a required property more, closed",
        {**object_schema({"a": TEXT, "b": TEXT}, additionalProperties=False), "required": ["b"]},
        CLOSED,
        "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
    ),
    (
        "a property less, closed",
        object_schema({}, additionalProperties=False),
        CLOSED,
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    ),
    (
        "a property less that is not covered",
        object_schema({}, additionalProperties=NUMBER),
        object_schema({"a": TEXT}, additionalProperties=NUMBER),
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ),
    (
        "a property more that is not covered",
        object_schema({"a": TEXT, "b": NUMBER}, additionalProperties=TEXT),
        TEXTS,
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ),
    ("closed", CLOSED, OPEN, "ADDITIONAL_PROPERTIES_REMOVED"),
    ("partly closed", TEXTS, OPEN, "ADDITIONAL_PROPERTIES_NARROWED"),
    ("items of another type", {**LIST, "items": NUMBER}, LIST, "TYPE_CHANGED"),
    ("no item twice", {**LIST, "uniqueItems": True}, LIST, "UNIQUE_ITEMS_ADDED"),
    ("one choice less", {"oneOf": [TEXT]}, {"oneOf": [TEXT, NUMBER]}, "SUM_TYPE_NARROWED"),
    ("more parts", {"allOf": [OPEN, NUMBER]}, {"allOf": [OPEN]}, "PRODUCT_TYPE_EXTENDED"),
    ("more refused", {"not": {"type": ["string", "null"]}}, {"not": TEXT}, "NOT_TYPE_EXTENDED"),
    ("a dependency", {**OPEN, "dependencies": {"a": ["b"]}}, OPEN, "DEPENDENCY_ARRAY_EXTENDED"),
]


@pytest.mark.parametrize(("new", "old"), [row[1:] for row in FITS], ids=[row[0] for row in FITS])
def test_json_schema_accepts_everything_that_was_allowed(new: Any, old: Any) -> None:
    assert kinds(new, old) == []


@pytest.mark.parametrize(
    ("new", "old", "why"), [row[1:] for row in REFUSES], ids=[row[0] for row in REFUSES]
)
def test_json_schema_rejects_something_that_was_allowed(new: Any, old: Any, why: str) -> None:
    assert why in kinds(new, old)


@pytest.mark.parametrize("value", [5, "x", {"type": "some"}, {"properties": 3}, {"$schema": 4}])
def test_malformed_schema_is_rejected(value: Any) -> None:
    with pytest.raises(RegistryError):
        JsonSchema(json.dumps(value))


def test_circular_references_terminate() -> None:
    tree = object_schema({"child": {"$ref": "#"}, "name": TEXT})
    assert kinds(tree, tree) == []
    loop = {"definitions": {"a": {"$ref": "#/definitions/a"}}, "$ref": "#/definitions/a"}
    with pytest.raises(RegistryError, match="circular"):
        kinds(loop, loop)


def test_references_to_other_schemas_are_resolved_by_name() -> None:
    outer = json.dumps(object_schema({"a": {"$ref": "other.json"}}))
    reader = JsonSchema(outer, {"other.json": json.dumps(TEXT)})
    writer = JsonSchema(outer, {"other.json": json.dumps(NUMBER)})
    assert [each.kind for each in reader.differences(writer, Budget())] == ["TYPE_CHANGED"]


@pytest.mark.parametrize("index", ["0", "1", "01", "9" * 5000, "²", "٣", "-1", "x", ""])
def test_reference_to_array_index_is_resolved_or_rejected(index: str) -> None:
    text = json.dumps({"allOf": [TEXT], "properties": {"a": {"$ref": f"#/allOf/{index}"}}})
    one = JsonSchema(text)
    if index == "0":
        assert [*one.differences(JsonSchema(text), Budget())] == []
    else:
        with pytest.raises(RegistryError, match="cannot be resolved"):
            [*one.differences(JsonSchema(text), Budget())]


@pytest.mark.parametrize(
    "schema",
    [
        {"required": True, "dependencies": {"a": "b"}, "extends": TEXT, "type": [TEXT, "null"]},
        {"anyOf": 5, "allOf": 5, "oneOf": "x", "not": 7},
        {"prefixItems": [5, "x"], "dependentRequired": {"a": [{}]}, "dependentSchemas": {"a": 1}},
        {"type": "number", "exclusiveMinimum": True, "divisibleBy": 3},
    ],
)
def test_keywords_of_other_drafts_are_ignored(schema: dict[str, Any]) -> None:
    for draft in ("draft-03", "draft-04", "draft-07"):
        declared = {
            "$schema": f"http://json-schema.org/{draft}/schema#",
            "properties": {"a": schema},
        }
        try:
            one = JsonSchema(json.dumps(declared))
        except RegistryError:
            continue
        assert [*one.differences(one, Budget())] == []


def test_duplicate_anchor_is_resolved_consistently() -> None:
    anchored = {"$defs": {"x": {"$anchor": "name", **TEXT}, "y": {"$id": "#other", **NUMBER}}}
    new = {**anchored, "properties": {"a": {"$ref": "#name"}, "b": {"$ref": "#other"}}}
    assert kinds(new, {"properties": {"a": TEXT, "b": NUMBER}}) == []
    assert kinds(new, {"properties": {"a": NUMBER, "b": NUMBER}}) == ["TYPE_CHANGED"]


def test_parts_of_all_of_are_not_confused() -> None:
    """Parts are identified by `id()`, so they must stay in memory during the comparison."""

    def products(kind: str) -> dict[str, Any]:
        each = [{"allOf": [{"minLength": 1}], "type": kind, "title": f"t{i}"} for i in range(50)]
        return {"properties": {f"p{i}": each[i] for i in range(50)}}

    assert kinds(products("string"), products("string")) == []
    assert len(kinds(products("string"), products("number"))) == 50
