"""Schema of a topic's values: inferred from JSON values and extended with new fields.

Types use Spark's JSON form of a schema, so Spark is not needed to infer them: a word (``bigint`` is
``long`` there), or an object with ``type`` struct, array or map. A field that was always null has
the type ``void``; it becomes a column with its first value.

A type in a lake never changes, because readers of Parquet directories handle changes differently.
Structs get new fields and ``void`` gets a type. Values that do not match are unreadable ("poison").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from .layout import DATE, HOUR, RECORD

# A word or an object, as described above.
Type = Any
Struct = dict[str, Any]

VOID, TEXT = "void", "string"
# Maximum number of inferred fields, including nested ones. Values with more are unreadable.
FIELDS_MAX = 2000
# Maximum nesting depth; deeper values stay strings.
DEPTH_MAX = 32
# Metadata key with the field's own name, if the column has another name.
NAME_OF_FIELD = "field"
PARTITION = "__kbroker_partition"
# First byte and length of a schema ID header.
SCHEMA_ID_MAGIC, SCHEMA_ID_HEADER_BYTES = b"\0", 5
RESERVED = frozenset({RECORD, DATE, HOUR, PARTITION})

_INT64 = range(-(2**63), 2**63)
_INTEGERS = {"byte": 2**7, "short": 2**15, "integer": 2**31, "long": 2**63}


def struct(fields: Iterable[Struct] = ()) -> Struct:
    """Return a struct type."""
    return {"type": "struct", "fields": list(fields)}


def grow_schema(schema: Struct, values: Iterable[Mapping[str, object]]) -> Struct:
    """Add the new fields and types in values to a topic's schema.

    Args:
        schema: Current schema.
        values: JSON objects.

    Returns:
        The new schema; the same object if nothing is new or the schema would get too large.
    """
    found = reduce(_merged, (type_of(value) for value in values), struct())
    return with_fields(schema, found) if isinstance(found, dict) else schema


def with_fields(schema: Struct, found: Struct) -> Struct:
    """Add the fields of another schema, unless the schema would get too large."""
    larger = _with_columns(_extended_struct(_by_field(schema), found, nested=False))
    return schema if larger == schema or _count(larger) > FIELDS_MAX else larger


def field_name(field: Struct) -> str:
    """Return the name of a column's field in the values."""
    return str(field["metadata"].get(NAME_OF_FIELD, field["name"]))


def type_of(value: Any, depth: int = 0) -> Type:
    """Return the type of a JSON value."""
    if value is None:
        return VOID
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long" if value in _INT64 else TEXT
    if isinstance(value, float):
        return "double"
    if isinstance(value, str) or depth == DEPTH_MAX:
        return TEXT
    if isinstance(value, list):
        inner = reduce(_merged, (type_of(each, depth + 1) for each in value), VOID)
        return {"type": "array", "elementType": inner, "containsNull": True}
    if len({name.lower() for name in value}) < len(value) and depth:
        return TEXT  # Parquet readers do not distinguish names that differ only in case.
    return struct(_field(name, type_of(each, depth + 1)) for name, each in value.items())


def has_struct(kind: Type) -> bool:
    """Return True if values of a type may have fields."""
    return any(not isinstance(each, str) and each["type"] == "struct" for each in _parts(kind))


def has_void(kind: Type) -> bool:
    """Return True if part of a type is void."""
    return any(each == VOID for each in _parts(kind))


def without_void(kind: Type) -> Type | None:
    """Return the type without its void parts, or None if nothing remains."""
    if isinstance(kind, str):
        return None if kind == VOID else kind
    if kind["type"] == "struct":
        kept = [(field, without_void(field["type"])) for field in kind["fields"]]
        fields = [{**field, "type": inner} for field, inner in kept if inner is not None]
        return struct(fields) if fields else None
    key = "elementType" if kind["type"] == "array" else "valueType"
    inner = without_void(kind[key])
    return None if inner is None else {**kind, key: inner}


def without_schema_id(value: bytes) -> bytes:
    """Return JSON without the schema ID header that Confluent's serializers write."""
    return value[SCHEMA_ID_HEADER_BYTES:] if value.startswith(SCHEMA_ID_MAGIC) else value


def rejection_reason(value: bytes, schema: Struct, *, may_grow: bool) -> str:
    """Return why a value is not a JSON object of these fields, for users."""
    try:
        text = without_schema_id(value).decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.start}"
    try:
        parsed = json.loads(text, parse_constant=_reject_constant, object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}" if text.strip() else "not JSON: the value is empty"
    if not isinstance(parsed, dict):
        return f"{_describe(parsed)}, not an object"
    mismatches = _mismatches(
        parsed, {**schema, "fields": _by_field(schema)["fields"]}, "", may_grow
    )
    return next(mismatches, "not readable with the fields of this topic")


def _mismatches(value: object, kind: Type, path: str, may_grow: bool) -> Iterator[str]:
    """Yield the parts of a value that do not match its type."""
    if value is None or kind == VOID:
        return
    if isinstance(kind, str):
        if not _fits(value, kind):
            yield f"{path}: {_describe(value)}, expected {kind}"
    elif kind["type"] == "struct" and isinstance(value, dict):
        known = {field["name"]: field["type"] for field in kind["fields"]}
        for name, each in value.items():
            inner = f"{path}.{name}" if path else name
            if name in known:
                yield from _mismatches(each, known[name], inner, may_grow)
            elif each is not None and not may_grow:
                yield f"{inner}: a new field that cannot be added"
    elif kind["type"] == "array" and isinstance(value, list):
        for each in value:
            yield from _mismatches(each, kind["elementType"], f"{path}[]", may_grow)
    elif kind["type"] == "map" and isinstance(value, dict):
        for each in value.values():
            yield from _mismatches(each, kind["valueType"], f"{path}{{}}", may_grow)
    else:
        yield f"{path}: {_describe(value)}, expected {_describe_type(kind)}"


def _fits(value: object, kind: str) -> bool:
    if kind in _INTEGERS:
        limit = _INTEGERS[kind]
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if kind in ("double", "float"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    # Strings accept any value. For the other types, only Spark knows which scalars it can convert.
    return kind == TEXT or not isinstance(value, dict | list)


def _merged(one: Type, other: Type) -> Type:
    """Return a type for the values of both types."""
    if one == other or other == VOID:
        return one
    if one == VOID:
        return other
    if {str(one), str(other)} == {"long", "double"}:
        return "double"
    if isinstance(one, str) or isinstance(other, str) or one["type"] != other["type"]:
        return TEXT
    if one["type"] == "array":
        return {**one, "elementType": _merged(one["elementType"], other["elementType"])}
    types = {field["name"]: field["type"] for field in one["fields"]}
    for field in other["fields"]:
        types[field["name"]] = _merged(types.get(field["name"], VOID), field["type"])
    return struct(_field(name, kind) for name, kind in types.items())


def _extended(old: Type, new: Type) -> Type:
    """Return the old type with new fields; existing types are kept."""
    if old == VOID:
        return _unambiguous(new)
    if isinstance(old, str) or isinstance(new, str) or old["type"] != new["type"]:
        return old
    if old["type"] == "array":
        return {**old, "elementType": _extended(old["elementType"], new["elementType"])}
    return old if old["type"] == "map" else _extended_struct(old, new, nested=True)


def _extended_struct(old: Struct, new: Struct, *, nested: bool) -> Struct:
    """Return a struct with the fields of both.

    In nested structs, a new field is added only if its name differs in more than case.
    """
    new_types = {field["name"]: field["type"] for field in new["fields"]}
    kept = [
        {**field, "type": _extended(field["type"], new_types.pop(field["name"], VOID))}
        for field in old["fields"]
    ]
    taken = {field["name"].lower() for field in kept} if nested else set()
    added = [
        _field(name, _unambiguous(kind))
        for name, kind in new_types.items()
        if name.lower() not in taken
    ]
    return struct(kept + added)


def _unambiguous(kind: Type) -> Type:
    """Replace structs with fields that differ only in case by strings."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return {**kind, "elementType": _unambiguous(kind["elementType"])}
    if kind["type"] == "map":
        return kind
    fields = [{**field, "type": _unambiguous(field["type"])} for field in kind["fields"]]
    return struct(fields) if len({each["name"].lower() for each in fields}) == len(fields) else TEXT


def _by_field(schema: Struct) -> Struct:
    """Return the schema with the fields' own names instead of the column names."""
    return struct(_field(field_name(field), field["type"]) for field in schema["fields"])


def _with_columns(schema: Struct) -> Struct:
    """Give each field a column name that is unique regardless of case."""
    taken: set[str] = set(RESERVED)
    fields = []
    for field in schema["fields"]:
        column = field["name"] or "_"
        while column.lower() in taken:
            column += "_"
        taken.add(column.lower())
        metadata = {} if column == field["name"] else {NAME_OF_FIELD: field["name"]}
        fields.append({**field, "name": column, "metadata": metadata})
    return struct(fields)


def _field(name: str, kind: Type) -> Struct:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _parts(kind: Type) -> Iterator[Type]:
    """Yield a type and all types nested in it."""
    yield kind
    if isinstance(kind, dict):
        for key in ("elementType", "valueType"):
            yield from _parts(kind[key]) if key in kind else ()
        for field in kind.get("fields", ()):
            yield from _parts(field["type"])


def _count(schema: Struct) -> int:
    return sum(len(each.get("fields", ())) for each in _parts(schema) if isinstance(each, dict))


def _describe(value: object) -> str:
    """Return a short description of a value for messages."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _describe_type(kind: Struct) -> str:
    return {"struct": "an object", "array": "an array", "map": "an object"}.get(kind["type"], "?")


def _reject_constant(word: str) -> None:
    raise ValueError(f"{word} is not a JSON value")


def _pairs(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    return dict(pairs)


def parse_schema(text: str | None) -> Struct:
    """Parse a schema given by the user: DDL, or a file with DDL or Spark's JSON form.

    Raises:
        ValueError: The text is neither.
    """
    if text is None:
        return struct()
    if len(text) < 1000 and Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8")
    try:
        schema = json.loads(text) if text.lstrip().startswith("{") else _from_ddl(text)
        return with_fields(struct(), schema)
    except Exception as error:  # Spark's parser has its own exceptions
        raise ValueError(
            f"{text!r} is not a schema: {str(error).strip().splitlines()[0]}"
        ) from error


def _from_ddl(text: str) -> Struct:
    from pyspark.sql.types import StructType

    schema: Struct = StructType.fromDDL(text).jsonValue()
    return schema
