"""Random pairs of Avro schemas: a reader's, and a writer's that is usually a changed copy of it."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEFAULTS = {"int": 1, "long": 2, "string": "x", "boolean": True, "double": 1.5, "null": None}


class Cases:
    """Generator of schema pairs."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pair(self) -> tuple[str, str]:
        """Return a reader's and a writer's schema."""
        reader = self._schema(3, [])
        writer = (
            self._changed(copy.deepcopy(reader))
            if self._random.random() < 0.85
            else self._schema(3, [])
        )
        return json.dumps(reader), json.dumps(writer)

    def _schema(self, depth: int, names: list[str]) -> Any:
        kinds = (
            ["primitive"] * 3
            + (["record"] * 4 + ["union"] * 2 if depth else [])
            + ["enum", "fixed"]
        )
        if depth:
            kinds += ["array", "map"]
        kind = self._random.choice(kinds)
        if kind == "primitive":
            return self._random.choice(PRIMITIVES)
        if kind in ("array", "map"):
            return {
                "type": kind,
                "items" if kind == "array" else "values": self._schema(depth - 1, names),
            }
        if kind == "union":
            return self._union(depth, names)
        name = f"N{len(names)}"
        names.append(name)
        if kind == "enum":
            made: dict[str, Any] = {
                "type": kind,
                "name": name,
                "symbols": [*"ABCD"[: self._random.randint(1, 4)]],
            }
            if self._random.random() < 0.3:
                made["default"] = "A"
            return made
        if kind == "fixed":
            return {"type": kind, "name": name, "size": self._random.randint(1, 3)}
        return {
            "type": kind,
            "name": name,
            "fields": [
                self._field(each, depth, names) for each in range(self._random.randint(0, 4))
            ],
        }

    def _union(self, depth: int, names: list[str]) -> Any:
        branches: dict[str, Any] = {}
        for _ in range(self._random.randint(1, 4)):
            each = self._schema(depth - 1, names)
            if not isinstance(each, list):
                key = each if isinstance(each, str) else each.get("name", each["type"])
                branches.setdefault(key, each)
        return [*branches.values()]

    def _field(self, index: int, depth: int, names: list[str]) -> Any:
        kind = self._schema(depth - 1, names)
        made = {"name": f"f{index}", "type": kind}
        if isinstance(kind, str) and kind in DEFAULTS and self._random.random() < 0.5:
            made["default"] = DEFAULTS[kind]
        if self._random.random() < 0.15:
            made["aliases"] = [f"g{index}"]
        return made

    def _changed(self, schema: Any) -> Any:
        """Return the schema with up to two random changes."""
        for _ in range(self._random.randint(0, 2)):
            places = [*_places(schema)]
            if not places:
                return self._random.choice(PRIMITIVES)
            self._change(self._random.choice(places))
        return schema

    def _change(self, node: Any) -> None:
        chance = self._random
        if isinstance(node, list):
            if len(node) > 1 and chance.random() < 0.5:
                node.pop(chance.randrange(len(node)))
            elif "long" not in node:
                node.append("long")
        elif "fields" in node:
            what = chance.random()
            if node["fields"] and what < 0.3:
                node["fields"].pop(chance.randrange(len(node["fields"])))
            elif node["fields"] and what < 0.5:
                each = chance.choice(node["fields"])
                each["name"] = each["name"].replace("f", "g")
            elif node["fields"] and what < 0.8:
                each = chance.choice(node["fields"])
                if isinstance(each["type"], str) and each["type"] in PRIMITIVES:
                    each["type"] = chance.choice(PRIMITIVES)
                    each.pop("default", None)
            else:
                node["fields"].append({"name": "more", "type": "int"})
        elif "symbols" in node:
            node["symbols"] = [*"ABCDE"[: chance.randint(1, 5)]]
        elif "size" in node:
            node["size"] = chance.randint(1, 3)
        elif "items" in node and isinstance(node["items"], str) and node["items"] in PRIMITIVES:
            node["items"] = chance.choice(PRIMITIVES)
        elif "name" in node:
            node["namespace"] = "x"


def _places(schema: Any) -> Any:
    if isinstance(schema, list):
        yield schema
        for each in schema:
            yield from _places(each)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "enum", "fixed", "array", "map"):
            yield schema
        for key in ("items", "values"):
            yield from _places(schema.get(key))
        for each in schema.get("fields", ()):
            yield from _places(each["type"])
