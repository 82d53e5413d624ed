"""Avro schemas: parsing, validation, and the text that Avro's Java library produces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from .avro_compatibility import CompatibilityChecker
from .avro_types import ABSENT, Field, Type
from .errors import invalid_schema
from .limits import DEPTH_MAX, SHOWN_MAX, Budget, check_name, parse_json
from .parsed import Difference

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# JSON properties that the parser reads, by kind of type; other properties are stored unchanged.
_KNOWN_PROPERTIES = {
    "record": {"type", "name", "namespace", "doc", "fields", "aliases"},
    "error": {"type", "name", "namespace", "doc", "fields", "aliases"},
    "enum": {"type", "name", "namespace", "doc", "symbols", "default", "aliases"},
    "fixed": {"type", "name", "namespace", "doc", "size", "aliases"},
    "array": {"type", "items"},
    "map": {"type", "values"},
}
_KNOWN_FIELD_PROPERTIES = {"name", "type", "doc", "default", "order", "aliases"}


class AvroSchema:
    """A well-formed Avro schema.

    Args:
        text: JSON text of the schema.
        texts: JSON texts of the referenced schemas, dependencies first.
    """

    def __init__(self, text: str, texts: Iterable[str] = ()) -> None:
        reader = _Reader()
        for each in texts:
            reader.read(parse_json(each), "", 0)
        known = frozenset(reader.names)
        self.root = reader.read(parse_json(text), "", 0)
        self.canonical = _to_json(_Writer(known).to_json_value(self.root, None))
        self._known = known

    @property
    def normalized(self) -> str:
        """Text with sorted properties."""
        return _to_json(_Writer(self._known, is_sorted=True).to_json_value(self.root, None))

    def differences(self, writer: AvroSchema, budget: Budget) -> Iterator[Difference]:
        """Implement `parsed.ParsedSchema`."""
        return iter(CompatibilityChecker(budget).differences(self.root, writer.root))


class _Reader:
    """Parses JSON into types. Raises RegistryError."""

    def __init__(self) -> None:
        self.names: dict[str, Type] = {}
        self._budget = Budget()

    def read(self, node: object, space: str, depth: int) -> Type:
        if depth > DEPTH_MAX:
            raise invalid_schema(f"nested deeper than {DEPTH_MAX} levels")
        if isinstance(node, str):
            return self._lookup(node, space)
        if isinstance(node, list):
            return self._union(node, space, depth)
        if not isinstance(node, dict):
            raise invalid_schema(f"invalid type {_shorten(node)}")
        kind = node.get("type")
        if isinstance(kind, dict | list):
            return self.read(kind, space, depth + 1)
        if not isinstance(kind, str):
            raise invalid_schema(f"missing type in {_shorten(node)}")
        if kind in NAMED:
            return self._definition(kind, node, space, depth)
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if key not in node:
                raise invalid_schema(f"{kind} has no {key}")
            inner = self.read(node[key], space, depth + 1)
            return Type(
                kind,
                items=[inner],
                other_properties=_other_properties(node, _KNOWN_PROPERTIES[kind]),
            )
        if kind in PRIMITIVES:
            return Type(kind, other_properties=_other_properties(node, {"type"}))
        return self._lookup(kind, space)

    def _lookup(self, name: str, space: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        found = self.names.get(name if "." in name else _full_name(name, space)) or self.names.get(
            name
        )
        if found is None:
            raise invalid_schema(f'"{name}" is not a defined name')
        return found

    def _union(self, node: list[object], space: str, depth: int) -> Type:
        branches = [self.read(each, space, depth + 1) for each in node]
        seen = set()
        for each in branches:
            if each.kind == "union":
                raise invalid_schema("a union must not contain a union directly")
            name = each.name or each.kind
            if name in seen:
                raise invalid_schema(f"duplicate {name} in a union")
            seen.add(name)
        return Type("union", items=branches)

    def _definition(self, kind: str, node: dict[str, object], space: str, depth: int) -> Type:
        name = _name_of(node, space)
        self._budget.spend()
        if name in self.names:
            raise invalid_schema(f"{name} is defined twice")
        new = Type(
            kind,
            name,
            doc=_text(node, "doc"),
            aliases=tuple(dict.fromkeys(self._aliases(node, name.rpartition(".")[0]))),
            other_properties=_other_properties(node, _KNOWN_PROPERTIES[kind]),
        )
        self.names[name] = new
        if kind == "enum":
            _set_symbols(new, node)
        elif kind == "fixed":
            size = node.get("size")
            if type(size) is not int or size < 0:
                raise invalid_schema(f"{name} has no size")
            new.size = size
        else:
            new.fields = self._fields(node, new, depth)
        return new

    def _fields(self, node: dict[str, object], record: Type, depth: int) -> list[Field]:
        definitions = node.get("fields")
        if not isinstance(definitions, list):
            raise invalid_schema(f"{record.name} has no fields")
        fields: dict[str, Field] = {}
        for each in definitions:
            if not isinstance(each, dict) or "type" not in each:
                raise invalid_schema(f"a field of {record.name} has no type: {_shorten(each)}")
            name = _check_simple_name(each.get("name"))
            if name in fields:
                raise invalid_schema(f"{record.name} has two fields {name}")
            order = _text(each, "order")
            if order not in (None, "ascending", "descending", "ignore"):
                raise invalid_schema(
                    f"invalid order {order} (valid: ascending, descending, ignore)"
                )
            fields[name] = Field(
                name,
                self.read(each["type"], record.space, depth + 1),
                each.get("default", ABSENT),
                tuple(dict.fromkeys(_texts(each, "aliases"))),
                _text(each, "doc"),
                order,
                _other_properties(each, _KNOWN_FIELD_PROPERTIES),
            )
            _check_default(record, fields[name], self._budget)
        return [*fields.values()]

    def _aliases(self, node: dict[str, object], space: str) -> Iterator[str]:
        for each in _texts(node, "aliases"):
            full_name = _full_name(each, space)
            check_name(full_name)
            self._budget.spend(1 + len(full_name) // SHOWN_MAX)
            yield full_name


def _set_symbols(enum: Type, node: dict[str, object]) -> None:
    symbols = node.get("symbols")
    if not isinstance(symbols, list):
        raise invalid_schema(f"{enum.name} has no symbols")
    enum.symbols = tuple(map(_check_simple_name, symbols))
    if len(set(enum.symbols)) < len(enum.symbols):
        raise invalid_schema(f"{enum.name} has duplicate symbols")
    enum.default = node.get("default", ABSENT)
    if enum.has_default and enum.default not in enum.symbols:
        raise invalid_schema(
            f"{enum.name}: default {_shorten(enum.default)} is not one of its symbols"
        )


def _check_default(record: Type, each: Field, budget: Budget) -> None:
    if each.has_default and not _Defaults(budget).is_value(each.type, each.default):
        raise invalid_schema(
            f"field {record.name}.{each.name}: invalid default {_shorten(each.default)}"
        )


class _Defaults:
    """Checks a default against types. It checks each pair of a value and a type once.

    Branches of unions have parts in common, so repeated checks would double the work per nesting level.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._known: dict[tuple[int, int], bool] = {}

    def is_value(self, kind: Type, value: object) -> bool:
        """Return True if a JSON value is a valid default of a type, or of any branch of a union."""
        pair = id(kind), id(value)
        known = self._known.get(pair)
        if known is None:
            self._budget.spend()
            known = self._known[pair] = self._is_valid(kind, value)
        return known

    def _is_valid(self, kind: Type, value: object) -> bool:
        match kind.kind:
            case "array":
                return isinstance(value, list) and self._all(kind.items[0], value)
            case "map":
                return isinstance(value, dict) and self._all(kind.items[0], value.values())
            case "union":
                return any(self.is_value(branch, value) for branch in kind.items)
            case "record" | "error":
                self._budget.spend(len(kind.fields))
                return isinstance(value, dict) and all(
                    self.is_value(each.type, value[each.name])
                    if each.name in value
                    else each.has_default
                    for each in kind.fields
                )
        return _is_valid_scalar(kind.kind, value)

    def _all(self, kind: Type, values: Iterable[object]) -> bool:
        return all(self.is_value(kind, each) for each in values)


def _is_valid_scalar(kind: str, value: object) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = 31 if kind == "int" else 63
            return type(value) is int and -(1 << bits) <= value < 1 << bits
        case "float" | "double":
            return type(value) in (int, float)
    return isinstance(value, str)  # bytes, string, fixed, enum


class _Writer:
    """Serializes types to JSON values. The first use of a name contains its definition.

    Args:
        known: Names that need no definition, because referenced schemas define them.
        is_sorted: Sort `Type.other_properties`.
    """

    def __init__(self, known: frozenset[str], *, is_sorted: bool = False) -> None:
        self._defined = set(known)
        self._is_sorted = is_sorted

    def to_json_value(self, kind: Type, space: str | None) -> object:
        """Return the JSON of a type; `space` is the enclosing namespace, None at the top level."""
        if kind.kind == "union":
            return [self.to_json_value(each, space) for each in kind.items]
        if kind.kind in ("array", "map"):
            key = "items" if kind.kind == "array" else "values"
            inner = self.to_json_value(kind.items[0], space)
            return {"type": kind.kind, key: inner, **self._ordered(kind.other_properties)}
        if kind.kind not in NAMED:
            other_properties = self._ordered(kind.other_properties)
            return {"type": kind.kind, **other_properties} if other_properties else kind.kind
        if kind.name in self._defined:
            return kind.simple_name if kind.space == (space or "") else kind.name
        self._defined.add(kind.name)
        return self._definition(kind, space)

    def _definition(self, kind: Type, space: str | None) -> dict[str, object]:
        result: dict[str, object] = {"type": kind.kind, "name": kind.simple_name}
        if kind.space != (space or ""):
            result["namespace"] = kind.space
        if kind.doc is not None:
            result["doc"] = kind.doc
        if kind.kind == "enum":
            result["symbols"] = [*kind.symbols]
            if kind.has_default:
                result["default"] = kind.default
        elif kind.kind == "fixed":
            result["size"] = kind.size
        else:
            result["fields"] = [self._field(each, kind.space) for each in kind.fields]
        result |= self._ordered(kind.other_properties)
        if kind.aliases:
            result["aliases"] = [_relative_name(each, kind.space) for each in kind.aliases]
        return result

    def _field(self, each: Field, space: str) -> dict[str, object]:
        result = {"name": each.name, "type": self.to_json_value(each.type, space)}
        if each.doc is not None:
            result["doc"] = each.doc
        if each.has_default:
            result["default"] = each.default
        if each.order not in (None, "ascending"):
            result["order"] = each.order
        if each.aliases:
            result["aliases"] = [*each.aliases]
        return result | self._ordered(each.other_properties)

    def _ordered(self, properties: Mapping[str, object]) -> dict[str, object]:
        return dict(sorted(properties.items())) if self._is_sorted else dict(properties)


def _name_of(node: dict[str, object], space: str) -> str:
    name = node.get("name")
    if not isinstance(name, str):
        raise invalid_schema(f"{_shorten(node)} has no name")
    own_space = node.get("namespace")
    if own_space is not None and not isinstance(own_space, str):
        raise invalid_schema(f"the namespace of {name} must be a string")
    full_name = _full_name(name, space if own_space is None else own_space)
    check_name(full_name)
    for part in full_name.split("."):
        _check_simple_name(part)
    if full_name in PRIMITIVES:
        raise invalid_schema(f"{full_name} is a built-in Avro type")
    return full_name


def _full_name(name: str, space: str) -> str:
    """Return the full name that a name stands for in a namespace."""
    return name if "." in name or not space else f"{space}.{name}"


def _relative_name(name: str, space: str) -> str:
    """Return the shortest form of a full name that is used in a namespace."""
    return name.rpartition(".")[2] if name.rpartition(".")[0] == space else name


def _check_simple_name(name: object) -> str:
    """Return a name without namespace. Raises RegistryError if it is invalid."""
    if not isinstance(name, str) or not NAME.match(name):
        raise invalid_schema(f"invalid name {_shorten(name)}")
    return name


def _text(node: dict[str, object], key: str) -> str | None:
    value = node.get(key)
    return value if isinstance(value, str) else None


def _texts(node: dict[str, object], key: str) -> list[str]:
    value = node.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise invalid_schema(f"{key} must be a list of strings")
    return value


def _other_properties(node: dict[str, object], known: set[str]) -> dict[str, object]:
    return {key: value for key, value in node.items() if key not in known}


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _shorten(value: object) -> str:
    return json.dumps(value)[:SHOWN_MAX]
