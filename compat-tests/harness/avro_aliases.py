"""Random pairs of Avro schemas whose named types have aliases.

Records, errors, enums and fixed types occur in fields, arrays, maps and unions. They refer to
themselves, and have full and relative names, namespaces and aliases.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

SPACES = ("", "a", "b.c")
NAMES = ("R", "S", "T", "U", "V", "W")


class AliasCases:
    """Generator of pairs in which the writer's schema is the reader's schema with other names."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._left: list[str] = []

    def pair(self) -> tuple[str, str]:
        """Return a reader's and a writer's schema."""
        chance = self._random
        self._left = chance.sample(NAMES, len(NAMES))
        reader = self._named(2, [])
        writer = copy.deepcopy(reader)
        for each in definitions(writer):
            each.pop("aliases", None)
            for field in each.get("fields", ()):
                field.pop("aliases", None)
        renamed: dict[str, str] = {}
        for each in definitions(writer):
            if chance.random() < 0.6:
                renamed[each["name"]] = each["name"] = f"{each['name']}{chance.choice('xyz')}"
            if chance.random() < 0.3:
                each["namespace"] = chance.choice(SPACES)
        _rename(writer, renamed)
        for each in definitions(reader):
            self._add_aliases(each, renamed.get(each["name"], each["name"]))
        if chance.random() < 0.3:
            reader, writer = self._wrapped(reader), self._wrapped(writer)
        return json.dumps(reader), json.dumps(writer)

    def _named(self, depth: int, around: list[str]) -> dict[str, Any]:
        chance = self._random
        name = self._left.pop()
        kind = chance.choice(("record", "record", "error", "enum", "fixed"))
        made: dict[str, Any] = {"type": kind, "name": name}
        if chance.random() < 0.5:
            made["namespace"] = chance.choice(SPACES)
        if kind == "enum":
            made["symbols"] = [*"AB"]
        elif kind == "fixed":
            made["size"] = 2
        else:
            count = chance.randint(1, 3)
            names = [*around, name] if "namespace" not in made else [name]
            made["fields"] = [self._field(each, depth, names) for each in range(count)]
        return made

    def _field(self, index: int, depth: int, around: list[str]) -> dict[str, Any]:
        chance = self._random
        if depth and len(self._left) > 1:
            kind: Any = self._named(depth - 1, around)
        elif chance.random() < 0.4:
            kind = around[-1]  # the record refers to itself
        else:
            kind = chance.choice(("int", "string"))
        return {"name": f"f{index}", "type": self._wrapped(kind)}

    def _wrapped(self, kind: Any) -> Any:
        match self._random.randrange(6):
            case 0:
                return {"type": "array", "items": kind}
            case 1:
                return {"type": "map", "values": kind}
            case 2:
                return ["null", kind]
            case 3:
                return [kind, "boolean"]
        return kind

    def _add_aliases(self, each: dict[str, Any], name: str) -> None:
        """Add aliases to a type of the reader, one of which may be the writer's name."""
        chance = self._random
        choices = [name, *(f"{space}.{name}" for space in SPACES if space), "Other", f"x.{name}"]
        if chance.random() < 0.75:
            each["aliases"] = chance.sample(choices, chance.randint(1, 3))
        for field in each.get("fields", ()):
            if chance.random() < 0.05:
                field["aliases"] = chance.sample(("f0", "f1", "f2", "g"), chance.randint(1, 2))


def definitions(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield all named types that a schema defines."""
    if isinstance(schema, list):
        for each in schema:
            yield from definitions(each)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in ("record", "error", "enum", "fixed"):
            yield schema
        for key in ("items", "values"):
            yield from definitions(schema.get(key))
        for each in schema.get("fields", ()):
            yield from definitions(each["type"])


def _rename(schema: Any, names: dict[str, str]) -> None:
    """Replace the old names in references by the new ones."""
    if isinstance(schema, list):
        schema[:] = [names.get(each, each) if isinstance(each, str) else each for each in schema]
        for each in schema:
            _rename(each, names)
    elif isinstance(schema, dict):
        for key in ("items", "values", "type"):
            if isinstance(schema.get(key), str) and "name" not in schema:
                schema[key] = names.get(schema[key], schema[key])
            else:
                _rename(schema.get(key), names)
        for each in schema.get("fields", ()):
            if isinstance(each["type"], str):
                each["type"] = names.get(each["type"], each["type"])
            else:
                _rename(each["type"], names)
