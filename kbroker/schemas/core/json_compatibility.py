"""Compatibility check for JSON Schema: finds what a writer's schema allows and a reader's does not.

It follows the rules that Confluent documents. Missing properties are judged by the content model of
the object: open (any other property), closed, or partially open (limited by a pattern or a schema).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol

from kbroker.text.documents import Json

from .limits import DIFFERENCES_MAX, Budget, below
from .parsed import Difference

UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
# Keywords that do not restrict values.
ANNOTATIONS = frozenset(
    {"$id", "$schema", "$comment", "title", "description", "default", "examples"}
)
MORE_ANNOTATIONS = frozenset(
    {"definitions", "$defs", "$anchor", "readOnly", "writeOnly", "deprecated"}
)
# Characters of a value or of a pattern that cost one step.
STEP_CHARACTERS = 100
Schema = dict[str, Json]


class Document(Protocol):
    """A schema whose parts may contain references."""

    @property
    def root(self) -> Json:
        """Root of the schema."""

    def resolved(self, node: Json) -> Schema | bool:
        """Return the schema that a part stands for, with references resolved."""


class CompatibilityChecker:
    """Compares a writer's schema with a reader's schema, each pair of parts once."""

    def __init__(self, reader: Document, writer: Document, budget: Budget) -> None:
        self._reader, self._writer, self._budget = reader, writer, budget
        self._seen: dict[tuple[int, int], bool] = {}
        self._sets: dict[int, frozenset[str]] = {}
        self._products_of: dict[int, list[Json]] = {}
        self._values_of: dict[int, frozenset[str]] = {}
        self._patterns: dict[str, _Pattern] = {}

    def all(self) -> list[Difference]:
        """Return what the reader does not accept; empty if the schemas are compatible."""
        found = self._compared(self._reader.root, self._writer.root, "")
        return [*islice(found, DIFFERENCES_MAX)]

    def _fits(self, new: Json, old: Json, path: str) -> bool:
        """Return True if `new` allows everything that `old` allows."""
        pair = id(new), id(old)
        if pair not in self._seen:
            self._seen[pair] = True  # assume compatible while recursing
            self._seen[pair] = next(self._compared(new, old, path, seen=False), None) is None
        return self._seen[pair]

    def _compared(
        self, new: Json, old: Json, path: str, *, seen: bool = True
    ) -> Iterator[Difference]:
        """Yield the differences of two parts; `seen` skips pairs that are being compared."""
        self._budget.spend()
        new, old = self._reader.resolved(new), self._writer.resolved(old)
        pair = id(new), id(old)
        if seen and isinstance(new, dict) and isinstance(old, dict):
            if pair in self._seen:
                if not self._seen[pair]:
                    yield Difference("TYPE_CHANGED", path, "the reader does not accept this part")
                return
            self._seen[pair] = True
        if _accepts_all(new) or old is False:
            return
        if not isinstance(new, dict) or not isinstance(old, dict) or _accepts_all(old):
            yield Difference("TYPE_NARROWED", path, "the reader does not accept every value")
            return
        if _has_sum(new) or _has_sum(old):
            yield from self._sums(new, old, path)
        elif _has_product(new) or _has_product(old):
            yield from self._products(new, old, path)
        else:
            yield from self._plain(new, old, path)

    def _names(self, schema: Schema, key: str) -> frozenset[str]:
        """Return the strings of a list as a cached set."""
        listed = schema.get(key)
        known = self._sets.get(id(listed))
        if known is None:
            texts = _texts(schema, key)
            self._budget.spend(len(texts))
            known = frozenset(texts)
            if isinstance(listed, list):
                self._sets[id(listed)] = known
        return known

    def _are_among(self, few: list[Json], many: list[Json]) -> bool:
        """Return True if all names of one list are in another one."""
        self._budget.spend(len(few) + len(many))
        names = {each for each in many if isinstance(each, str)}
        return all(each in names for each in few if isinstance(each, str))

    # -- combined schemas

    def _sums(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        options = _options(new)
        self._budget.spend(len(options))
        for each in _options(old):
            if not any(self._fits(option, each, path) for option in options):
                yield Difference(
                    "SUM_TYPE_NARROWED",
                    path,
                    "no alternative of the reader accepts one of the writer's",
                )
                return

    def _products(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        parts = self._parts(old)
        for each in self._parts(new):
            if not any(self._fits(each, part, path) for part in parts):
                yield Difference(
                    "PRODUCT_TYPE_EXTENDED",
                    path,
                    "the reader has a condition that the writer lacks",
                )
                return

    def _parts(self, schema: Schema) -> list[Json]:
        """Return the parts of `allOf`. They are cached, because `_seen` contains the `id()` of each part."""
        parts = schema.get("allOf")
        if not isinstance(parts, list):
            return [schema]
        known = self._products_of.get(id(schema))
        if known is None:
            rest = {key: each for key, each in schema.items() if key != "allOf"}
            known = [*parts, *([] if _accepts_all(rest) else [rest])]
            self._products_of[id(schema)] = known
        return known

    # -- single schemas

    def _plain(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        yield from self._not(new, old, path)
        yield from _types(new, old, path)
        yield from self._choices(new, old, path)
        yield from _limits(new, old, path)
        yield from self._objects(new, old, path)
        yield from self._arrays(new, old, path)

    def _not(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        if "not" not in new:
            return
        # `not` must not forbid more than before, so compare in the opposite direction.
        reverse = CompatibilityChecker(self._writer, self._reader, self._budget)
        if "not" not in old or next(reverse._compared(old["not"], new["not"], path), None):
            yield Difference("NOT_TYPE_EXTENDED", f"{path}/not", "the reader forbids more values")

    def _choices(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        if not _values(new):
            return
        taken, theirs = self._written(new), self._written(old)
        self._budget.spend(len(theirs))
        if not theirs or not theirs <= taken:
            yield Difference(
                "ENUM_ARRAY_CHANGED", f"{path}/enum", "the reader accepts fewer values"
            )

    def _written(self, schema: Schema) -> frozenset[str]:
        """Return the JSON of the values of `enum` or `const`, as a cached set."""
        known = self._values_of.get(id(schema))
        if known is None:
            texts = [json.dumps(each, sort_keys=True) for each in _values(schema)]
            self._budget.spend(sum(1 + len(each) // STEP_CHARACTERS for each in texts))
            known = self._values_of[id(schema)] = frozenset(texts)
        return known

    def _objects(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        ours, theirs = _mapping(new, "properties"), _mapping(old, "properties")
        for name, each in theirs.items():
            where = below(f"{path}/properties", name)
            if name in ours:
                yield from self._compared(ours[name], each, where)
            else:
                yield from self._removed(new, name, each, where)
        for name in ours:
            if name not in theirs:
                yield from self._added(new, old, name, below(f"{path}/properties", name))
        yield from self._required(new, old, path)
        yield from self._rest(new, old, "additionalProperties", "PROPERTIES", path)
        yield from self._dependencies(new, old, path)

    def _removed(self, new: Schema, name: str, each: Json, path: str) -> Iterator[Difference]:
        cover = self._cover(new, name)
        if cover is False and each is not False:
            yield Difference(
                "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                path,
                "the reader does not allow this property",
            )
        elif not self._fits(cover, each, path):
            yield Difference(
                "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                path,
                "the reader's rules for other properties do not cover it",
            )

    def _added(self, new: Schema, old: Schema, name: str, path: str) -> Iterator[Difference]:
        each, cover = (
            self._reader.resolved(_mapping(new, "properties")[name]),
            self._cover(old, name),
        )
        if cover is False:
            is_needed = name in self._names(new, "required")
            if is_needed and not (isinstance(each, dict) and "default" in each):
                yield Difference(
                    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
                    path,
                    "the reader requires it, without a default",
                )
        elif _accepts_all(cover) and not _accepts_all(each):
            yield Difference(
                "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                path,
                "the writer allows any value, the reader does not",
            )
        elif not self._fits(each, cover, path):
            yield Difference(
                "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                path,
                "the reader does not accept all values of the writer's other properties",
            )

    def _cover(self, schema: Schema, name: str) -> Json:
        """Return the schema that applies to a property without its own entry."""
        for pattern, each in _mapping(schema, "patternProperties").items():
            self._budget.spend()
            known = self._patterns.get(pattern)
            if known is None:
                self._budget.spend(len(pattern) // STEP_CHARACTERS)
                known = self._patterns[pattern] = _Pattern.of(pattern)
            if known.matches(name):
                return each
        return schema.get("additionalProperties", True)

    def _required(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        ours, before = _mapping(new, "properties"), _mapping(old, "properties")
        known = self._names(old, "required")
        for name in _texts(new, "required"):
            self._budget.spend()
            each = self._reader.resolved(ours.get(name))
            has_default = isinstance(each, dict) and "default" in each
            is_new = name not in known and (name in before or name not in ours)
            if is_new and not has_default:
                yield Difference(
                    "REQUIRED_ATTRIBUTE_ADDED",
                    below(f"{path}/required", name),
                    "the reader requires it, without a default",
                )

    def _rest(
        self, new: Schema, old: Schema, key: str, what: str, path: str
    ) -> Iterator[Difference]:
        """Compare the rules for properties or items without their own entry."""
        ours, theirs = new.get(key, True), old.get(key, True)
        where = f"{path}/{key}"
        if ours is False:
            if theirs is not False:
                yield Difference(
                    f"ADDITIONAL_{what}_REMOVED", where, "the reader allows no additional ones"
                )
        elif theirs is not False and not _accepts_all(ours):
            if _accepts_all(theirs):
                yield Difference(
                    f"ADDITIONAL_{what}_NARROWED", where, "the reader restricts additional ones"
                )
            else:
                yield from self._compared(ours, theirs, where)

    def _dependencies(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        for key in ("dependencies", "dependentRequired", "dependentSchemas"):
            before = _mapping(old, key)
            for name, each in _mapping(new, key).items():
                self._budget.spend()
                where, known = below(f"{path}/{key}", name), before.get(name)
                if isinstance(each, list):
                    if not isinstance(known, list) or not self._are_among(each, known):
                        yield Difference(
                            "DEPENDENCY_ARRAY_EXTENDED",
                            where,
                            "the reader requires more properties",
                        )
                elif known is None or isinstance(known, list):
                    yield Difference(
                        "DEPENDENCY_SCHEMA_ADDED", where, "the reader has an additional condition"
                    )
                else:
                    yield from self._compared(each, known, where)

    def _arrays(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        if new.get("uniqueItems") and not old.get("uniqueItems"):
            yield Difference(
                "UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "the reader requires unique items"
            )
        ours, theirs = _tuple(new), _tuple(old)
        rest_new, rest_old = _rest_of_items(new), _rest_of_items(old)
        for index in range(max(len(ours), len(theirs))):
            each = ours[index] if index < len(ours) else rest_new
            known = theirs[index] if index < len(theirs) else rest_old
            if known is not False:
                yield from self._item(each, known, f"{path}/items/{index}")
        if rest_old is not False:
            yield from self._item(rest_new, rest_old, f"{path}/items")

    def _item(self, new: Json, old: Json, path: str) -> Iterator[Difference]:
        if new is False and old is not False:
            yield Difference(
                "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                path,
                "the reader does not allow this item",
            )
        elif _accepts_all(old) and not _accepts_all(self._reader.resolved(new)):
            yield Difference(
                "ITEM_ADDED_TO_OPEN_CONTENT_MODEL",
                path,
                "the writer allows any value, the reader does not",
            )
        else:
            yield from self._compared(new, old, path)


# -- parts of schemas


def _accepts_all(schema: Json) -> bool:
    return schema is True or (
        isinstance(schema, dict)
        and schema.keys() <= ANNOTATIONS | MORE_ANNOTATIONS
        and "$ref" not in schema
    )


def _has_sum(schema: Schema) -> bool:
    return isinstance(schema.get("anyOf"), list) or isinstance(schema.get("oneOf"), list)


def _has_product(schema: Schema) -> bool:
    return isinstance(schema.get("allOf"), list)


def _options(schema: Schema) -> list[Json]:
    """Return the alternatives of a schema; the schema itself if it has none."""
    for key in ("oneOf", "anyOf"):
        found = schema.get(key)
        if isinstance(found, list):
            return found
    return [schema]


def _mapping(schema: Schema, key: str) -> Mapping[str, Json]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def _texts(schema: Schema, key: str) -> list[str]:
    """Return the strings of a list. Some drafts of JSON Schema have other types under the same key."""
    value = schema.get(key)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _tuple(schema: Schema) -> list[Json]:
    """Return the schemas of the first items, one per item."""
    value = schema.get("prefixItems", schema.get("items"))
    return value if isinstance(value, list) else []


def _rest_of_items(schema: Schema) -> Json:
    """Return the schema of the items after the tuple."""
    items = schema.get("items", True)
    return schema.get("additionalItems", True) if isinstance(items, list) else items


class _Pattern(NamedTuple):
    """A pattern that is a plain prefix, suffix or substring.

    Other patterns match no name, because a client's regular expression may take unbounded time.
    """

    plain: str
    begins: bool
    ends: bool
    is_plain: bool

    @classmethod
    def of(cls, pattern: str) -> _Pattern:
        text = pattern.removeprefix("^").removesuffix("$").removesuffix(".*")
        plain = re.sub(r"\\(.)", r"\1", text)
        return cls(
            plain,
            pattern.startswith("^"),
            pattern.endswith("$") and not pattern.endswith(".*$"),
            re.search(r"[][.*+?(){}|]", plain) is None,
        )

    def matches(self, name: str) -> bool:
        if not self.is_plain:
            return False
        if self.begins and self.ends:
            return name == self.plain
        if self.begins:
            return name.startswith(self.plain)
        return name.endswith(self.plain) if self.ends else self.plain in name


def _types_of(schema: Schema) -> frozenset[str] | None:
    value = schema.get("type")
    if isinstance(value, str):
        return frozenset([value])
    if not isinstance(value, list):
        return None
    names = frozenset(each for each in value if isinstance(each, str))
    return names if all(isinstance(each, str) for each in value) else None


def _types(new: Schema, old: Schema, path: str) -> Iterator[Difference]:
    ours, theirs = _types_of(new), _types_of(old)
    if ours is None:
        return
    taken = ours | {"integer"} if "number" in ours else ours
    if theirs is None:
        if not (_values(old) and "type" not in old and _are_of(_values(old), taken)):
            yield Difference("TYPE_NARROWED", path, f"the reader accepts only {_listed(ours)}")
    elif not theirs <= taken:
        kind = "TYPE_NARROWED" if theirs & taken else "TYPE_CHANGED"
        yield Difference(kind, path, f"the reader accepts {_listed(ours)}, not {_listed(theirs)}")


def _are_of(values: list[Json], types: frozenset[str]) -> bool:
    return all(not _names_of(each).isdisjoint(types) for each in values)


def _names_of(value: Json) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}


def _listed(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))


def _values(schema: Schema) -> list[Json]:
    """Return the values that `const` or `enum` allows; empty without such a list."""
    if "const" in schema:
        return [schema["const"]]
    value = schema.get("enum")
    return value if isinstance(value, list) else []


def _limits(new: Schema, old: Schema, path: str) -> Iterator[Difference]:
    for keys, sign in ((UPPER, 1), (LOWER, -1)):
        for key in keys:
            ours, theirs = new.get(key), old.get(key)
            if type(ours) not in (int, float):
                continue
            if type(theirs) not in (int, float) or sign * ours < sign * theirs:  # type: ignore[operator]
                yield _limit(key, path, "ADDED" if theirs is None else "CHANGED")
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        yield _limit("pattern", path, "CHANGED" if "pattern" in old else "ADDED")
    step, known = _step(new), _step(old)
    if step is not None and (known is None or not _is_multiple(known, step)):
        yield _limit("multipleOf", path, "ADDED" if known is None else "CHANGED")


def _step(schema: Schema) -> float | None:
    value = schema.get("multipleOf")
    return value if isinstance(value, int | float) and value > 0 else None


def _is_multiple(value: float, step: float) -> bool:
    try:
        return not value % step
    except OverflowError:  # an integer beyond the range of float
        return False


def _limit(key: str, path: str, what: str) -> Difference:
    name = re.sub(r"([A-Z])", r"_\1", key).upper()
    return Difference(
        f"{name}_{what}", f"{path}/{key}", "the reader is more restrictive than the writer"
    )
