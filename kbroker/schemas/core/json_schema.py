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
    """A well-formed JSON Schema.

    Args:
        text: JSON text of the schema.
        texts: JSON texts of the referenced schemas by reference name.
    """

    def __init__(self, text: str, texts: Mapping[str, str] | None = None) -> None:
        root = parse_json(text)
        if not isinstance(root, bool | dict):
            raise invalid_schema("a schema must be an object, true or false")
        self.root = root
        self._documents = _by_name_and_id(
            {name: parse_json(each) for name, each in (texts or {}).items()}
        )
        self._targets: dict[str, Json] = {}
        self._known_anchors: dict[int, Mapping[str, Json]] = {}
        _check(self.root)
        self.canonical = _to_json(self.root)

    @property
    def normalized(self) -> str:
        """Text with sorted keys."""
        return _to_json(self.root, is_sorted=True)

    def differences(self, writer: JsonSchema, budget: Budget) -> Iterator[Difference]:
        """Implement `parsed.ParsedSchema`."""
        return iter(CompatibilityChecker(self, writer, budget).differences())

    def resolved(self, node: Json) -> Schema | bool:
        """Return the schema of a part, with `$ref` resolved; True if the part is no schema.

        Raises:
            RegistryError: A `$ref` is circular or cannot be resolved.
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
            self._targets[reference] = self._resolve(reference)
        return self._targets[reference]

    def _resolve(self, reference: str) -> Json:
        uri, _, fragment = reference.partition("#")
        document = self.root if not uri else self._document(uri)
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            found = self._anchors(document).get(pointer)
        else:
            found = _part_at(document, pointer)
        if found is None:
            raise invalid_schema(f"$ref {reference[:200]} cannot be resolved")
        return found

    def _anchors(self, document: Json) -> Mapping[str, Json]:
        """Return the named definitions of a document, cached."""
        known = self._known_anchors.get(id(document))
        if known is None:
            known = self._known_anchors[id(document)] = dict(_named_definitions(document))
        return known

    def _document(self, uri: str) -> Json:
        """Return the schema with a URI, which may be relative to the `$id` of the root."""
        root_id = self.root.get("$id") if isinstance(self.root, dict) else None
        base = root_id if isinstance(root_id, str) else ""
        if uri == base:
            return self.root
        try:
            absolute_uri = urljoin(base, uri)
        except ValueError:
            absolute_uri = uri
        for each in (uri, absolute_uri):
            if each in self._documents:
                return self._documents[each]
        raise invalid_schema(f"$ref {uri[:200]} is not among its references")


def _by_name_and_id(documents: Mapping[str, Json]) -> dict[str, Json]:
    """Return schemas by reference name and by `$id`.

    Args:
        documents: The schemas by reference name.
    """
    found = dict(documents)
    for each in documents.values():
        document_id = each.get("$id") if isinstance(each, dict) else None
        if isinstance(document_id, str):
            found.setdefault(document_id, each)
    return found


def _check(root: Schema | bool) -> None:
    if isinstance(root, dict) and not isinstance(root.get("$schema", ""), str):
        raise invalid_schema("$schema must be a string")
    kind = _with_fast_unique_items(validator_for(root, default=Draft7Validator))
    # Report the first error, because a choice among all errors would require finding them. Patterns
    # are not validated, because their compilation may take long.
    error = next(kind(kind.META_SCHEMA).iter_errors(root), None)
    if error is not None:
        path = "/".join(str(each)[:SHOWN_MAX] for each in error.absolute_path)
        raise invalid_schema(f"{error.message[:300]} (at /{path})")


def _with_fast_unique_items(kind: type[Validator]) -> type[Validator]:
    """Return a validator that checks `uniqueItems` in linear time.

    jsonschema compares all pairs of items if the items cannot be sorted.
    """
    extended: type[Validator] = extend(kind, {"uniqueItems": _unique_items})  # type: ignore[no-untyped-call]
    return extended


def _unique_items(
    _: Validator, is_required: object, items: object, __: object
) -> Iterator[ValidationError]:
    if not is_required or not isinstance(items, list):
        return
    texts = {json.dumps(each, sort_keys=True) for each in items}
    if len(texts) < len(items):
        yield ValidationError("the list has equal items")


def _part_at(document: Json, pointer: str) -> Json:
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


def _named_definitions(document: Json) -> Iterator[tuple[str, Json]]:
    """Yield named definitions, last one first.

    In a dictionary of the result, the first definition with a name therefore replaces the others.
    """
    if not isinstance(document, dict):
        return
    groups = [document.get(key) for key in ("$defs", "definitions")]
    found = [each for group in groups if isinstance(group, dict) for each in group.values()]
    for each in reversed(found):
        for key in ("$id", "$anchor"):
            name = each.get(key) if isinstance(each, dict) else None
            if isinstance(name, str):
                yield name.removeprefix("#"), each


def _to_json(root: Json, *, is_sorted: bool = False) -> str:
    return json.dumps(root, separators=(",", ":"), ensure_ascii=False, sort_keys=is_sorted)
