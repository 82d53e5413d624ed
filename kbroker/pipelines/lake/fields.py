"""What the fields of a topic's values are: found in JSON values, grown when new ones come.

Types are written as Spark's JSON form of a schema has them, so that no Spark is needed to find them:
a word (``bigint`` is ``long`` there), or an object with ``type`` struct, array or map. A field that
was only ever null has the type ``void``: it is no column until a value comes.

A type that a lake has once never changes, because readers of Parquet directories do not agree on what to
do then. A struct gets fields, ``void`` gets a type, and what does not fit is poison.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from .layout import DATE, HOUR, RECORD

Type = Any
"""A word or an object, see above."""
Struct = dict[str, Any]

VOID, TEXT = "void", "string"
FIELDS_MAX = 2000
"""So many fields, nested ones counted, may be found in values; values with more are poison."""
DEPTH_MAX = 32
"""Deeper values stay text."""
NAME_OF_FIELD = "field"
"""The key of a column's metadata that holds the field's own name, where that is another one."""
PARTITION = "__kbroker_partition"
NUMBERED, NUMBER_BYTES = b"\0", 5
"""How the number of a schema begins, and how long it is with that."""
RESERVED = frozenset({RECORD, DATE, HOUR, PARTITION})

_INT64 = range(-(2**63), 2**63)
_INTEGERS = {"byte": 2**7, "short": 2**15, "integer": 2**31, "long": 2**63}


def struct(fields: Iterable[Struct] = ()) -> Struct:
    """A struct of fields."""
    return {"type": "struct", "fields": list(fields)}


def grown(schema: Struct, values: Iterable[Mapping[str, object]]) -> Struct:
    """The schema of a topic with what is new in values: new fields, types for void ones.

    Returns the schema itself, unchanged, when there is nothing new or it would get too large.
    """
    found = reduce(_merged, (type_of(value) for value in values), struct())
    return with_fields(schema, found) if isinstance(found, dict) else schema


def with_fields(schema: Struct, found: Struct) -> Struct:
    """The schema of a topic with the fields of another; it stays as it is if it gets too large."""
    larger = _with_columns(_with_new_fields(_by_field(schema), found, nested=False))
    return schema if larger == schema or _count(larger) > FIELDS_MAX else larger


def field_name(field: Struct) -> str:
    """What a column's field is called in the values."""
    return str(field["metadata"].get(NAME_OF_FIELD, field["name"]))


def type_of(value: Any, depth: int = 0) -> Type:
    """The type for a JSON value."""
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
        return TEXT  # No reader of Parquet keeps apart what differs in case only.
    return struct(_field(name, type_of(each, depth + 1)) for name, each in value.items())


def has_struct(kind: Type) -> bool:
    """Whether values of a type may have fields."""
    return any(not isinstance(each, str) and each["type"] == "struct" for each in _parts(kind))


def has_void(kind: Type) -> bool:
    """Whether part of a type is not known yet."""
    return any(each == VOID for each in _parts(kind))


def without_void(kind: Type) -> Type | None:
    """The part of a type that can be written; None when that is nothing."""
    if isinstance(kind, str):
        return None if kind == VOID else kind
    if kind["type"] == "struct":
        kept = [(field, without_void(field["type"])) for field in kind["fields"]]
        fields = [{**field, "type": inner} for field, inner in kept if inner is not None]
        return struct(fields) if fields else None
    key = "elementType" if kind["type"] == "array" else "valueType"
    inner = without_void(kind[key])
    return None if inner is None else {**kind, key: inner}


def without_number(value: bytes) -> bytes:
    """JSON without the number of its schema, where a serializer of Confluent's has put that before it."""
    return value[NUMBER_BYTES:] if value.startswith(NUMBERED) else value


def why_not(value: bytes, schema: Struct, *, may_grow: bool) -> str:
    """Why a value is no JSON object of these fields: for the reader of a poison file."""
    try:
        text = without_number(value).decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.start}"
    try:
        parsed = json.loads(text, parse_constant=_refuse, object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}" if text.strip() else "not JSON: nothing is there"
    if not isinstance(parsed, dict):
        return f"{_said(parsed)}, not an object"
    misfits = _misfits(parsed, {**schema, "fields": _by_field(schema)["fields"]}, "", may_grow)
    return next(misfits, "not readable with the fields of this topic")


def _misfits(value: object, kind: Type, path: str, may_grow: bool) -> Iterator[str]:
    """What in a value does not fit its type."""
    if value is None or kind == VOID:
        return
    if isinstance(kind, str):
        if not _fits(value, kind):
            yield f"{path}: {_said(value)} where {kind} is kept"
    elif kind["type"] == "struct" and isinstance(value, dict):
        known = {field["name"]: field["type"] for field in kind["fields"]}
        for name, each in value.items():
            inner = f"{path}.{name}" if path else name
            if name in known:
                yield from _misfits(each, known[name], inner, may_grow)
            elif each is not None and not may_grow:
                yield f"{inner}: a new field that cannot be added"
    elif kind["type"] == "array" and isinstance(value, list):
        for each in value:
            yield from _misfits(each, kind["elementType"], f"{path}[]", may_grow)
    elif kind["type"] == "map" and isinstance(value, dict):
        for each in value.values():
            yield from _misfits(each, kind["valueType"], f"{path}{{}}", may_grow)
    else:
        yield f"{path}: {_said(value)} where {_kind_said(kind)} is kept"


def _fits(value: object, kind: str) -> bool:
    if kind in _INTEGERS:
        limit = _INTEGERS[kind]
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if kind in ("double", "float"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    # Text takes everything; what the other types read from text or a number, Spark alone knows.
    return kind == TEXT or not isinstance(value, dict | list)


def _merged(one: Type, other: Type) -> Type:
    """A type for the values of both, which were seen at the same time."""
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


def _with_new(old: Type, new: Type) -> Type:
    """The old type, grown: what it has stays."""
    if old == VOID:
        return _unambiguous(new)
    if isinstance(old, str) or isinstance(new, str) or old["type"] != new["type"]:
        return old
    if old["type"] == "array":
        return {**old, "elementType": _with_new(old["elementType"], new["elementType"])}
    return old if old["type"] == "map" else _with_new_fields(old, new, nested=True)


def _with_new_fields(old: Struct, new: Struct, *, nested: bool) -> Struct:
    """A struct with the fields of another; a nested one only with those it can tell apart."""
    came = {field["name"]: field["type"] for field in new["fields"]}
    kept = [
        {**field, "type": _with_new(field["type"], came.pop(field["name"], VOID))}
        for field in old["fields"]
    ]
    taken = {field["name"].lower() for field in kept} if nested else set()
    added = [
        _field(name, _unambiguous(kind)) for name, kind in came.items() if name.lower() not in taken
    ]
    return struct(kept + added)


def _unambiguous(kind: Type) -> Type:
    """Text in place of a struct with fields that differ in case only."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return {**kind, "elementType": _unambiguous(kind["elementType"])}
    if kind["type"] == "map":
        return kind
    fields = [{**field, "type": _unambiguous(field["type"])} for field in kind["fields"]]
    return struct(fields) if len({each["name"].lower() for each in fields}) == len(fields) else TEXT


def _by_field(schema: Struct) -> Struct:
    """The schema with the fields' own names."""
    return struct(_field(field_name(field), field["type"]) for field in schema["fields"])


def _with_columns(schema: Struct) -> Struct:
    """The schema with a column name for each field that no reader mistakes for another."""
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
    """A type and all that is in it."""
    yield kind
    if isinstance(kind, dict):
        for key in ("elementType", "valueType"):
            yield from _parts(kind[key]) if key in kind else ()
        for field in kind.get("fields", ()):
            yield from _parts(field["type"])


def _count(schema: Struct) -> int:
    return sum(len(each.get("fields", ())) for each in _parts(schema) if isinstance(each, dict))


def _said(value: object) -> str:
    """A value in a message: short, and with its kind."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _kind_said(kind: Struct) -> str:
    return {"struct": "an object", "array": "an array", "map": "an object"}.get(kind["type"], "?")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")


def _pairs(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    return dict(pairs)


def given(text: str | None) -> Struct:
    """The schema that somebody gives: DDL, or a file with DDL or Spark's JSON form.

    Raises:
        ValueError: it is neither.
    """
    if text is None:
        return struct()
    if len(text) < 1000 and Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8")
    try:
        schema = json.loads(text) if text.lstrip().startswith("{") else _from_ddl(text)
        return with_fields(struct(), schema)
    except Exception as error:  # Spark's parser has errors of its own
        raise ValueError(f"{text!r} is no schema: {str(error).strip().splitlines()[0]}") from error


def _from_ddl(text: str) -> Struct:
    from pyspark.sql.types import StructType

    schema: Struct = StructType.fromDDL(text).jsonValue()
    return schema
