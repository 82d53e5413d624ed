"""JSON Schema: whether a text is one, and what its references mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

from jsonschema import Draft7Validator, SchemaError
from jsonschema.validators import validator_for

from .errors import invalid_schema
from .json_reading import Reading
from .limits import DEPTH_MAX, Budget, parse_json
from .parsed import Difference

HOPS_MAX = DEPTH_MAX
"""References that lead to references."""


class JsonSchema:
    """A JSON Schema that is well-formed. `texts` are those it refers to, by their names."""

    def __init__(self, text: str, texts: Mapping[str, str] | None = None) -> None:
        self.root = parse_json(text)
        if not isinstance(self.root, bool | dict):
            raise invalid_schema("a schema is an object, true or false")
        self._others = {name: parse_json(each) for name, each in (texts or {}).items()}
        _check(self.root)
        self.canonical = _dumped(self.root)

    @property
    def normalized(self) -> str:
        """With all keys in the order of their names."""
        return _dumped(self.root, is_sorted=True)

    def differences(self, writer: JsonSchema, budget: Budget) -> Iterator[Difference]:
        """As `parsed.Parsed`."""
        return iter(Reading(self, writer, budget).all())

    def resolved(self, node: Any) -> Any:
        """What a part of the schema stands for, if it refers to another one. Raises RegistryError."""
        for _ in range(HOPS_MAX):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                return node
            node = self._target(node["$ref"])
        raise invalid_schema("references lead in a circle")

    def _target(self, reference: str) -> Any:
        place, _, fragment = reference.partition("#")
        document = self.root if not place else self._document(place)
        found = _at(document, unquote(fragment))
        if found is None:
            raise invalid_schema(f"$ref {reference[:200]} leads nowhere")
        return found

    def _document(self, place: str) -> Any:
        own = self.root.get("$id") if isinstance(self.root, dict) else None
        base = own if isinstance(own, str) else ""
        if place == base:
            return self.root
        try:
            whole = urljoin(base, place)
        except ValueError:
            whole = place
        for name, document in self._others.items():
            told = document.get("$id") if isinstance(document, dict) else None
            if name in (place, whole) or told in (place, whole):
                return document
        raise invalid_schema(f"$ref {place[:200]} is none of its references")


def _check(root: Any) -> None:
    if isinstance(root, dict) and not isinstance(root.get("$schema", ""), str):
        raise invalid_schema("$schema is a text")
    try:
        validator_for(root, default=Draft7Validator).check_schema(root)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path))
        raise invalid_schema(f"{error.message[:300]} (at /{where})") from None


def _at(document: Any, pointer: str) -> Any:
    """The part at a JSON pointer; None where there is none."""
    if pointer and not pointer.startswith("/"):
        return _anchored(document, pointer)
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return None
    return document


def _anchored(document: Any, anchor: str) -> Any:
    """A definition that has a name of its own."""
    for key in ("$defs", "definitions"):
        for each in (document.get(key) or {}).values() if isinstance(document, dict) else ():
            names = (each.get("$anchor"), each.get("$id")) if isinstance(each, dict) else ()
            if anchor in names or f"#{anchor}" in names:
                return each
    return None


def _dumped(root: Any, *, is_sorted: bool = False) -> str:
    return json.dumps(root, separators=(",", ":"), ensure_ascii=False, sort_keys=is_sorted)
