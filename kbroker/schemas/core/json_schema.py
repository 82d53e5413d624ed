"""JSON Schema: validation and resolution of references."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urljoin

from jsonschema import Draft7Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for

from kbroker.text.documents import Json

from .errors import invalid_schema
from .json_compatibility import CompatibilityChecker, Schema
from .limits import DEPTH_MAX, SHOWN_MAX, Budget, parse_json
from .parsed import Difference

# Maximum length of a chain of references.
HOPS_MAX = DEPTH_MAX
# Array index in a JSON pointer.
_INDEX = re.compile(r"[0-9]{1,7}\Z")


class JsonSchema:
    """A well-formed JSON Schema; `texts` are the referenced schemas by name."""

    def __init__(self, text: str, texts: Mapping[str, str] | None = None) -> None:
        root = parse_json(text)
        if not isinstance(root, bool | dict):
            raise invalid_schema("a schema must be an object, true or false")
        self.root = root
        self._places = _placed({name: parse_json(each) for name, each in (texts or {}).items()})
        self._targets: dict[str, Json] = {}
        self._known_anchors: dict[int, Mapping[str, Json]] = {}
        _check(self.root)
        self.canonical = _dumped(self.root)

    @property
    def normalized(self) -> str:
        """Text with sorted keys."""
        return _dumped(self.root, is_sorted=True)

    def differences(self, writer: JsonSchema, budget: Budget) -> Iterator[Difference]:
        """Implement `parsed.Parsed`."""
        return iter(CompatibilityChecker(self, writer, budget).all())

    def resolved(self, node: Json) -> Schema | bool:
        """Return the schema of a part, with `$ref` resolved. Anything else allows all values.

        Raises RegistryError.
        """
        found = node
        for _ in range(HOPS_MAX):
            reference = found.get("$ref") if isinstance(found, dict) else None
            if not isinstance(reference, str):
                return found if isinstance(found, dict | bool) else True
            found = self._target(reference)
        raise invalid_schema("circular $ref")

    def _target(self, reference: str) -> Json:
        if reference not in self._targets:
            self._targets[reference] = self._found(reference)
        return self._targets[reference]

    def _found(self, reference: str) -> Json:
        place, _, fragment = reference.partition("#")
        document = self.root if not place else self._document(place)
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            found = self._anchors(document).get(pointer)
        else:
            found = _at(document, pointer)
        if found is None:
            raise invalid_schema(f"$ref {reference[:200]} cannot be resolved")
        return found

    def _anchors(self, document: Json) -> Mapping[str, Json]:
        """Return the named definitions of a document, cached."""
        known = self._known_anchors.get(id(document))
        if known is None:
            known = self._known_anchors[id(document)] = dict(_anchored(document))
        return known

    def _document(self, place: str) -> Json:
        own = self.root.get("$id") if isinstance(self.root, dict) else None
        base = own if isinstance(own, str) else ""
        if place == base:
            return self.root
        try:
            whole = urljoin(base, place)
        except ValueError:
            whole = place
        for each in (place, whole):
            if each in self._places:
                return self._places[each]
        raise invalid_schema(f"$ref {place[:200]} is not among its references")


def _placed(others: Mapping[str, Json]) -> dict[str, Json]:
    """Return schemas by reference name and by their own `$id`."""
    placed = dict(others)
    for each in others.values():
        own_id = each.get("$id") if isinstance(each, dict) else None
        if isinstance(own_id, str):
            placed.setdefault(own_id, each)
    return placed


def _check(root: Schema | bool) -> None:
    if isinstance(root, dict) and not isinstance(root.get("$schema", ""), str):
        raise invalid_schema("$schema must be a string")
    kind = _extended(validator_for(root, default=Draft7Validator))
    # Report the first error: selecting the best one would require all of them. Patterns are not
    # validated, because compiling them may take long.
    error = next(kind(kind.META_SCHEMA).iter_errors(root), None)
    if error is not None:
        where = "/".join(str(each)[:SHOWN_MAX] for each in error.absolute_path)
        raise invalid_schema(f"{error.message[:300]} (at /{where})")


def _extended(kind: type[Validator]) -> type[Validator]:
    """Return a validator with its own check for unique items.

    jsonschema compares all pairs of items that cannot be sorted.
    """
    made: type[Validator] = extend(kind, {"uniqueItems": _unique_items})  # type: ignore[no-untyped-call]
    return made


def _unique_items(
    _: Validator, wanted: object, items: object, __: object
) -> Iterator[ValidationError]:
    if not wanted or not isinstance(items, list):
        return
    texts = {json.dumps(each, sort_keys=True) for each in items}
    if len(texts) < len(items):
        yield ValidationError("the list has equal items")


def _at(document: Json, pointer: str) -> Json:
    """Return the part at a JSON pointer, or None."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and _INDEX.match(key) and int(key) < len(document):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return None
    return document


def _anchored(document: Json) -> Iterator[tuple[str, Json]]:
    """Yield named definitions; the first one of a name comes last and so takes precedence."""
    if not isinstance(document, dict):
        return
    listed = [document.get(key) for key in ("$defs", "definitions")]
    found = [each for some in listed if isinstance(some, dict) for each in some.values()]
    for each in reversed(found):
        for key in ("$id", "$anchor"):
            name = each.get(key) if isinstance(each, dict) else None
            if isinstance(name, str):
                yield name.removeprefix("#"), each


def _dumped(root: Json, *, is_sorted: bool = False) -> str:
    return json.dumps(root, separators=(",", ":"), ensure_ascii=False, sort_keys=is_sorted)
