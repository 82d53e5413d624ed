"""Compatibility check for JSON Schema: finds what a writer's schema allows and a reader's does not.

The check follows the rules that Confluent documents. The rule for an added or removed property depends
on the content model of its object: open (allows any other property), closed (allows none), or partially
open (a pattern or a schema limits the other properties).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol

from kbroker.text.documents import Json

from .limits import DIFFERENCES_MAX, Budget, child_path
from .parsed import Difference

# Keywords whose number is an upper limit, and keywords whose number is a lower limit.
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
    """Compares a writer's schema with a reader's schema. Each pair of parts is compared once."""

    def __init__(self, reader: Document, writer: Document, budget: Budget) -> None:
        self._reader, self._writer, self._budget = reader, writer, budget
        self._seen: dict[tuple[int, int], bool] = {}
        self._sets: dict[int, frozenset[str]] = {}
        self._products_of: dict[int, list[Json]] = {}
        self._values_of: dict[int, frozenset[str]] = {}
        self._patterns: dict[str, _Pattern] = {}

    def differences(self) -> list[Difference]:
        """Return what the reader does not accept; empty if the schemas are compatible."""
        found = self._compare(self._reader.root, self._writer.root, "")
        return [*islice(found, DIFFERENCES_MAX)]

    def _accepts(self, new: Json, old: Json, path: str) -> bool:
        """Return True if `new` allows everything that `old` allows."""
        pair = id(new), id(old)
        if pair not in self._seen:
            self._seen[pair] = True  # assume compatible while recursing
            self._seen[pair] = next(self._compare(new, old, path, seen=False), None) is None
        return self._seen[pair]

    def _compare(
        self, new: Json, old: Json, path: str, *, seen: bool = True
    ) -> Iterator[Difference]:
        """Yield the differences of two parts.

        Args:
            new: Part of the reader's schema.
            old: Part of the writer's schema.
            path: Location of the part.
            seen: Do not compare a pair again that was compared before, or that is being compared.
        """
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
        value = schema.get(key)
        known = self._sets.get(id(value))
        if known is None:
            texts = _texts(schema, key)
            self._budget.spend(len(texts))
            known = frozenset(texts)
            if isinstance(value, list):
                self._sets[id(value)] = known
        return known

    def _is_subset(self, subset: list[Json], superset: list[Json]) -> bool:
        """Return True if `superset` contains all strings of `subset`."""
        self._budget.spend(len(subset) + len(superset))
        names = {each for each in superset if isinstance(each, str)}
        return all(each in names for each in subset if isinstance(each, str))

    # -- combined schemas

    def _sums(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        options = _options(new)
        self._budget.spend(len(options))
        for each in _options(old):
            if not any(self._accepts(option, each, path) for option in options):
                yield Difference(
                    "SUM_TYPE_NARROWED",
                    path,
                    "no alternative of the reader accepts one of the writer's alternatives",
                )
                return

    def _products(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        parts = self._parts(old)
        for each in self._parts(new):
            if not any(self._accepts(each, part, path) for part in parts):
                yield Difference(
                    "PRODUCT_TYPE_EXTENDED",
                    path,
                    "the reader has a condition that the writer lacks",
                )
                return

    def _parts(self, schema: Schema) -> list[Json]:
        """Return the parts of `allOf`. The list is cached, because `_seen` has the `id()` of each part."""
        parts = schema.get("allOf")
        if not isinstance(parts, list):
            return [schema]
        known = self._products_of.get(id(schema))
        if known is None:
            other_keywords = {key: each for key, each in schema.items() if key != "allOf"}
            known = [*parts, *([] if _accepts_all(other_keywords) else [other_keywords])]
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
        # The reader's `not` must not forbid more values, so compare in the opposite direction.
        reverse = CompatibilityChecker(self._writer, self._reader, self._budget)
        if "not" not in old or next(reverse._compare(old["not"], new["not"], path), None):
            yield Difference("NOT_TYPE_EXTENDED", f"{path}/not", "the reader forbids more values")

    def _choices(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        if not _values(new):
            return
        accepted, written = self._value_texts(new), self._value_texts(old)
        self._budget.spend(len(written))
        if not written or not written <= accepted:
            yield Difference(
                "ENUM_ARRAY_CHANGED", f"{path}/enum", "the reader accepts fewer values"
            )

    def _value_texts(self, schema: Schema) -> frozenset[str]:
        """Return the JSON of the values of `enum` or `const`, as a cached set."""
        known = self._values_of.get(id(schema))
        if known is None:
            texts = [json.dumps(each, sort_keys=True) for each in _values(schema)]
            self._budget.spend(sum(1 + len(each) // STEP_CHARACTERS for each in texts))
            known = self._values_of[id(schema)] = frozenset(texts)
        return known

    def _objects(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        new_properties, old_properties = _mapping(new, "properties"), _mapping(old, "properties")
        for name, each in old_properties.items():
            child = child_path(f"{path}/properties", name)
            if name in new_properties:
                yield from self._compare(new_properties[name], each, child)
            else:
                yield from self._removed(new, name, each, child)
        for name in new_properties:
            if name not in old_properties:
                yield from self._added(new, old, name, child_path(f"{path}/properties", name))
        yield from self._required(new, old, path)
        yield from self._additional(new, old, "additionalProperties", "PROPERTIES", path)
        yield from self._dependencies(new, old, path)

    def _removed(self, new: Schema, name: str, each: Json, path: str) -> Iterator[Difference]:
        other_rule = self._rule_for_other(new, name)
        if other_rule is False and each is not False:
            yield Difference(
                "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                path,
                "the reader does not allow this property",
            )
        elif not self._accepts(other_rule, each, path):
            yield Difference(
                "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                path,
                "the reader's rules for other properties do not cover this property",
            )

    def _added(self, new: Schema, old: Schema, name: str, path: str) -> Iterator[Difference]:
        each = self._reader.resolved(_mapping(new, "properties")[name])
        other_rule = self._rule_for_other(old, name)
        if other_rule is False:
            is_required = name in self._names(new, "required")
            if is_required and not (isinstance(each, dict) and "default" in each):
                yield Difference(
                    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
                    path,
                    "the reader requires this property, without a default",
                )
        elif _accepts_all(other_rule) and not _accepts_all(each):
            yield Difference(
                "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                path,
                "the writer allows any value, the reader does not",
            )
        elif not self._accepts(each, other_rule, path):
            yield Difference(
                "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                path,
                "the reader does not accept all values of the writer's other properties",
            )

    def _rule_for_other(self, schema: Schema, name: str) -> Json:
        """Return the schema that applies to a property that is not in `properties`."""
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
        new_properties, old_properties = _mapping(new, "properties"), _mapping(old, "properties")
        old_names = self._names(old, "required")
        for name in _texts(new, "required"):
            self._budget.spend()
            each = self._reader.resolved(new_properties.get(name))
            has_default = isinstance(each, dict) and "default" in each
            # `_added` checks properties that only the reader has.
            is_checked_here = name in old_properties or name not in new_properties
            if name not in old_names and is_checked_here and not has_default:
                yield Difference(
                    "REQUIRED_ATTRIBUTE_ADDED",
                    child_path(f"{path}/required", name),
                    "the reader requires this property, without a default",
                )

    def _additional(
        self, new: Schema, old: Schema, key: str, name: str, path: str
    ) -> Iterator[Difference]:
        """Compare the rules for properties or items that have no rule of their own.

        Args:
            new: Part of the reader's schema.
            old: Part of the writer's schema.
            key: Keyword of the rule.
            name: What the rule applies to, as in the names of Confluent's error types.
            path: Location of the part.
        """
        new_rule, old_rule = new.get(key, True), old.get(key, True)
        child = f"{path}/{key}"
        if new_rule is False:
            if old_rule is not False:
                yield Difference(
                    f"ADDITIONAL_{name}_REMOVED",
                    child,
                    f"the reader allows no additional {name.lower()}",
                )
        elif old_rule is not False and not _accepts_all(new_rule):
            if _accepts_all(old_rule):
                yield Difference(
                    f"ADDITIONAL_{name}_NARROWED",
                    child,
                    f"the reader restricts additional {name.lower()}",
                )
            else:
                yield from self._compare(new_rule, old_rule, child)

    def _dependencies(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        for key in ("dependencies", "dependentRequired", "dependentSchemas"):
            old_rules = _mapping(old, key)
            for name, each in _mapping(new, key).items():
                self._budget.spend()
                child, old_rule = child_path(f"{path}/{key}", name), old_rules.get(name)
                if isinstance(each, list):
                    if not isinstance(old_rule, list) or not self._is_subset(each, old_rule):
                        yield Difference(
                            "DEPENDENCY_ARRAY_EXTENDED",
                            child,
                            "the reader requires more properties",
                        )
                elif old_rule is None or isinstance(old_rule, list):
                    yield Difference(
                        "DEPENDENCY_SCHEMA_ADDED", child, "the reader has an additional condition"
                    )
                else:
                    yield from self._compare(each, old_rule, child)

    def _arrays(self, new: Schema, old: Schema, path: str) -> Iterator[Difference]:
        if new.get("uniqueItems") and not old.get("uniqueItems"):
            yield Difference(
                "UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "the reader requires unique items"
            )
        new_tuple, old_tuple = _tuple(new), _tuple(old)
        new_rest, old_rest = _items_after_tuple(new), _items_after_tuple(old)
        for index in range(max(len(new_tuple), len(old_tuple))):
            new_item = new_tuple[index] if index < len(new_tuple) else new_rest
            old_item = old_tuple[index] if index < len(old_tuple) else old_rest
            if old_item is not False:
                yield from self._item(new_item, old_item, f"{path}/items/{index}")
        if old_rest is not False:
            yield from self._item(new_rest, old_rest, f"{path}/items")

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
            yield from self._compare(new, old, path)


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
    """Return the alternatives in a schema, or the schema itself if it contains no alternatives."""
    for key in ("oneOf", "anyOf"):
        found = schema.get(key)
        if isinstance(found, list):
            return found
    return [schema]


def _mapping(schema: Schema, key: str) -> Mapping[str, Json]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def _texts(schema: Schema, key: str) -> list[str]:
    """Return the strings of a list; some drafts of JSON Schema use other types for the same keyword."""
    value = schema.get(key)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _tuple(schema: Schema) -> list[Json]:
    """Return the schemas of the first items, one per item."""
    value = schema.get("prefixItems", schema.get("items"))
    return value if isinstance(value, list) else []


def _items_after_tuple(schema: Schema) -> Json:
    """Return the schema of the items after the tuple."""
    items = schema.get("items", True)
    return schema.get("additionalItems", True) if isinstance(items, list) else items


class _Pattern(NamedTuple):
    """A pattern that matches names by a plain prefix, suffix or substring.

    Other patterns match no name, because a client's regular expression may take unbounded time.

    Attributes:
        plain: The prefix, suffix or substring.
        begins: True if names must begin with `plain`.
        ends: True if names must end with `plain`.
        is_plain: False if the pattern is of another form.
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
    new_types, old_types = _types_of(new), _types_of(old)
    if new_types is None:
        return
    accepted = new_types | {"integer"} if "number" in new_types else new_types
    if old_types is None:
        if not (_values(old) and "type" not in old and _have_types(_values(old), accepted)):
            yield Difference("TYPE_NARROWED", path, f"the reader accepts only {_join(new_types)}")
    elif not old_types <= accepted:
        kind = "TYPE_NARROWED" if old_types & accepted else "TYPE_CHANGED"
        yield Difference(
            kind, path, f"the reader accepts {_join(new_types)}, not {_join(old_types)}"
        )


def _have_types(values: list[Json], types: frozenset[str]) -> bool:
    return all(not _types_of_value(each).isdisjoint(types) for each in values)


def _types_of_value(value: Json) -> set[str]:
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


def _join(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))


def _values(schema: Schema) -> list[Json]:
    """Return the values that `const` or `enum` allows; an empty list without these keywords."""
    if "const" in schema:
        return [schema["const"]]
    value = schema.get("enum")
    return value if isinstance(value, list) else []


def _limits(new: Schema, old: Schema, path: str) -> Iterator[Difference]:
    for keys, sign in ((UPPER, 1), (LOWER, -1)):
        for key in keys:
            new_limit, old_limit = new.get(key), old.get(key)
            if type(new_limit) not in (int, float):
                continue
            if type(old_limit) not in (int, float) or sign * new_limit < sign * old_limit:  # type: ignore[operator]
                yield _limit(key, path, "ADDED" if old_limit is None else "CHANGED")
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        yield _limit("pattern", path, "CHANGED" if "pattern" in old else "ADDED")
    new_step, old_step = _step(new), _step(old)
    if new_step is not None and (old_step is None or not _is_multiple(old_step, new_step)):
        yield _limit("multipleOf", path, "ADDED" if old_step is None else "CHANGED")


def _step(schema: Schema) -> float | None:
    value = schema.get("multipleOf")
    return value if isinstance(value, int | float) and value > 0 else None


def _is_multiple(value: float, step: float) -> bool:
    try:
        return not value % step
    except OverflowError:  # an integer beyond the range of float
        return False


def _limit(key: str, path: str, change: str) -> Difference:
    name = re.sub(r"([A-Z])", r"_\1", key).upper()
    return Difference(
        f"{name}_{change}", f"{path}/{key}", "the reader is more restrictive than the writer"
    )
