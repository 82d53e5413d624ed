"""Schemas that once took long to read or to compare."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from kbroker.schemas.core.registry import CheckTask
from kbroker.schemas.core.store import Registered
from kbroker.schemas.core.values import AVRO, JSON, PROTOBUF, Content, Level

# Size of large schemas: slightly below the maximum size of a request.
BYTES = 900_000


class Attack(NamedTuple):
    """A schema, and the earlier schema that it is compared with, if any."""

    type: str
    text: str
    earlier: str | None = None

    def compared(self) -> CheckTask:
        """Return the task for a registry to check."""
        old = () if self.earlier is None else (self.registered(),)
        content = Content(self.type, self.text)
        return CheckTask(content, {}, Level.FULL, False, tuple((each, {}) for each in old))

    def registered(self) -> Registered:
        """Return the earlier schema as version 1 of a subject."""
        assert self.earlier is not None
        return Registered("s", 1, 1, Content(self.type, self.earlier))


def record(name: str, fields: list[object], **more: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": fields, **more}


def blanks_behind_a_protobuf_file(size: int) -> Attack:
    return Attack(PROTOBUF, "A" + " " * size + "!")


def blanks_in_a_protobuf_file(size: int) -> Attack:
    return Attack(PROTOBUF, 'syntax = "proto3"; message M {}' + " \n" * (size // 2))


def comments_without_an_end(size: int) -> Attack:
    return Attack(PROTOBUF, "/ *" * (size // 3) + "/*" + '"' * 9)


def package_of_many_parts(size: int) -> Attack:
    fields = "".join(f"x{i} f = {i + 1};" for i in range(size // 40))
    return Attack(PROTOBUF, f"package {'.'.join('a' * (size // 4))}; message M {{ {fields} }}")


def unknown_types_in_nested_messages(size: int) -> Attack:
    names = ["M" * 15 + str(depth) for depth in range(55)]
    opening = "".join(f"message {each} {{" for each in names)
    fields = "".join(f"x{i} f{i} = {i + 1};" for i in range(18_000))
    text = 'import "google/protobuf/any.proto";' + opening + fields + "}" * len(names)
    return Attack(PROTOBUF, text[:size] if size < len(text) else text)


def descriptor_with_many_oneofs(size: int) -> Attack:
    count = size // 60
    file = FileDescriptorProto(name="f", syntax="proto3")
    message = file.message_type.add(name="M")
    for index in range(count):
        message.oneof_decl.add(name=f"o{index}")
        field = message.field.add(name=f"f{index}", number=index + 1, oneof_index=index)
        field.type = FieldDescriptorProto.TYPE_INT32
        file.dependency.append(f"{index}")
        file.public_dependency.append(index)
    return Attack(PROTOBUF, base64.b64encode(file.SerializeToString()).decode())


def default_in_nested_unions(size: int) -> Attack:
    """Each level has two branches that do not accept the default."""
    depth = min(size // 30, 28)
    kind: object = ["null", "int"]
    value: object = "x"
    for level in range(depth):
        kind = [
            {"type": "map", "values": kind},
            record(f"R{level}", [{"name": "a", "type": kind if level == 0 else f"R{level - 1}"}]),
        ]
        value = {"a": value}
    return Attack(AVRO, json.dumps(record("R", [{"name": "a", "type": kind, "default": value}])))


def default_in_mutual_records(size: int) -> Attack:
    """The branches of a union lead to the same nested record."""
    depth = min(size // 60, 40)
    first = record("R0", [{"name": "a", "type": "int"}])
    fields: list[object] = [{"name": "f0", "type": first}]
    value: object = {"a": "x"}
    for level in range(1, depth):
        inner = f"R{level - 1}"
        union = [{"type": "map", "values": inner}, inner]
        made = record(f"R{level}", [{"name": "a", "type": union}])
        fields.append({"name": f"f{level}", "type": made})
        value = {"a": value}
    last = {"name": "g", "type": ["null", f"R{depth - 1}"], "default": value}
    return Attack(AVRO, json.dumps(record("R", [*fields, last])))


def long_namespace_of_many_records(size: int) -> Attack:
    inner = [
        {"name": f"f{i}", "type": {"type": "fixed", "name": f"F{i}", "size": 1}}
        for i in range(size // 120)
    ]
    return Attack(AVRO, json.dumps(record("R", [*inner], namespace="n" * (size // 2))))


def many_aliases(size: int) -> Attack:
    aliases = [f"a{i}" for i in range(size // 12)]
    return Attack(AVRO, json.dumps(record("R", [], namespace="n" * 900, aliases=aliases)))


def enums_with_many_symbols(size: int) -> Attack:
    """Each enum of the writer's union is compared with the large enum of the reader's."""
    symbols = [f"s{i}" for i in range(size // 12)]
    reader = [{"type": "enum", "name": "E", "symbols": symbols}]
    count = size // 50
    writer = [{"type": "enum", "name": f"W{i}", "symbols": ["s0"]} for i in range(count)]
    return Attack(AVRO, json.dumps(reader), json.dumps(writer))


def records_with_many_fields(size: int) -> Attack:
    fields: list[object] = [
        {"name": f"f{i}", "type": "int", "default": 0} for i in range(size // 50)
    ]
    large: list[object] = [record("R", fields)]
    small: list[object] = [
        record(f"W{i}", [{"name": "f0", "type": "int"}]) for i in range(size // 90)
    ]
    return Attack(AVRO, json.dumps(large), json.dumps(small))


def long_chain_of_records(size: int) -> Attack:
    """No record is deeply nested, but each refers to the one before it."""
    fields: list[object] = [{"name": "f0", "type": record("R0", [])}]
    for i in range(1, size // 100):
        made = record(f"R{i}", [{"name": "a", "type": f"R{i - 1}"}])
        fields.append({"name": f"f{i}", "type": made})
    text = json.dumps(record("R", fields))
    return Attack(AVRO, text, text)


def references_to_anchors(size: int) -> Attack:
    count = size // 110
    definitions = {f"d{i}": {"$anchor": f"a{i}", "type": "string"} for i in range(count)}
    properties = {f"p{i}": {"$ref": f"#a{count - 1}"} for i in range(count)}
    text = json.dumps({"$defs": definitions, "properties": properties})
    return Attack(JSON, text, text)


def references_in_chains(size: int) -> Attack:
    long = "x" * 300
    definitions: dict[str, object] = {
        f"{long}{i}": {"$ref": f"#/$defs/{long}{i + 1}"} for i in range(60)
    }
    definitions[f"{long}60"] = {"type": "string"}
    properties = {f"p{i}": {"$ref": f"#/$defs/{long}0"} for i in range(size // 400)}
    text = json.dumps({"$defs": definitions, "properties": properties})
    return Attack(JSON, text, text)


def many_required_names(size: int) -> Attack:
    names = [f"n{i}" for i in range(size // 22)]
    properties = dict.fromkeys(names, True)
    new = {"properties": properties, "required": names, "additionalProperties": False}
    old = {**new, "required": names[::-1]}
    return Attack(JSON, json.dumps(new), json.dumps(old))


def large_enums_in_choices(size: int) -> Attack:
    values = [f"v{i}" for i in range(size // 20)]
    choices = [{"enum": values}, *({"const": f"w{i}"} for i in range(size // 40))]
    other = [{"const": f"v{i}", "title": "x"} for i in range(size // 40)]
    return Attack(JSON, json.dumps({"anyOf": choices}), json.dumps({"anyOf": other}))


def many_patterns(size: int) -> Attack:
    patterns = {f"^p{i}$": {"type": "string"} for i in range(size // 60)}
    properties = {f"q{i}": {"type": "string"} for i in range(size // 60)}
    new = {"patternProperties": patterns, "additionalProperties": False}
    return Attack(JSON, json.dumps(new), json.dumps({**new, "properties": properties}))


def long_names_on_the_way(size: int) -> Attack:
    inner = {f"p{i}": {"type": "string"} for i in range(size // 60)}
    root: object = {"properties": inner}
    for level in range(10):
        root = {"properties": {"x" * (size // 30) + str(level): root}}
    text = json.dumps(root)
    return Attack(JSON, text, text.replace('"string"', '"number"'))


def nested_choices(size: int) -> Attack:
    new: object = {"type": "string"}
    old: object = {"type": "number"}
    for _ in range(min(size // 60, 55)):
        new, old = {"anyOf": [new, new]}, {"oneOf": [old, old]}
        if len(json.dumps(new)) > size // 4:
            break
    return Attack(JSON, json.dumps(new), json.dumps(old))


def circular_references(size: int) -> Attack:
    count = min(size // 60, 3000)
    definitions = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{(i + 1) % count}"}]} for i in range(count)
    }
    text = json.dumps({"$defs": definitions, "$ref": "#/$defs/d0"})
    return Attack(JSON, text, text)


def values_that_cannot_be_sorted(size: int) -> Attack:
    """A validator cannot sort these values to find duplicates and has to compare all pairs."""
    values: list[object] = [each for i in range(size // 16) for each in (i, f"{i}")]
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "enum": values}
    return Attack(JSON, json.dumps(schema))


def deep_brackets(size: int) -> Attack:
    return Attack(JSON, "[" * size)


def quotes_and_escapes(size: int) -> Attack:
    return Attack(AVRO, '"' + "\\\\" * (size // 2))


ATTACKS: Mapping[str, Callable[[int], Attack]] = {
    each.__name__: each
    for each in (
        blanks_behind_a_protobuf_file,
        blanks_in_a_protobuf_file,
        comments_without_an_end,
        package_of_many_parts,
        unknown_types_in_nested_messages,
        descriptor_with_many_oneofs,
        default_in_nested_unions,
        default_in_mutual_records,
        long_namespace_of_many_records,
        many_aliases,
        enums_with_many_symbols,
        records_with_many_fields,
        long_chain_of_records,
        references_to_anchors,
        references_in_chains,
        many_required_names,
        large_enums_in_choices,
        many_patterns,
        long_names_on_the_way,
        nested_choices,
        circular_references,
        values_that_cannot_be_sorted,
        deep_brackets,
        quotes_and_escapes,
    )
}


GOOD = Attack(AVRO, '"int"').compared()
