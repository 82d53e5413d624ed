"""Validation of documents by a JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jsonschema import Draft7Validator, ValidationError
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from kbroker.text.documents import Json

from .errors import invalid_schema
from .formats import Texts
from .limits import parse_json

# Maximum number of characters of a reason.
REASON_MAX = 300


def validator_of(text: str, texts: Texts) -> Callable[[Json], tuple[str, str] | None]:
    """Return a function that returns path and reason of the first problem of a document, or None.

    Args:
        text: Text of the schema.
        texts: Texts of its references by reference name.

    Raises:
        RegistryError: A text is not JSON.
    """
    schema = parse_json(text)
    if not isinstance(schema, bool | dict):
        raise invalid_schema("a schema must be an object, true or false")
    registry: Registry[bool | Mapping[str, Any]] = Registry()
    for name, each in texts.items():
        document = parse_json(each)
        if not isinstance(document, bool | dict):
            continue
        uris = {name, document.get("$id", name) if isinstance(document, dict) else name}
        for uri in uris:
            registry = registry.with_resource(str(uri), DRAFT7.create_resource(document))
    validator = validator_for(schema, default=Draft7Validator)(schema, registry=registry)

    def problem_of(document: Json) -> tuple[str, str] | None:
        try:
            error: ValidationError | None = next(validator.iter_errors(document), None)
        except Unresolvable as unresolvable:
            return "", f"the schema has a $ref that cannot be resolved: {unresolvable}"
        except RecursionError:
            return "", "it is nested too deeply"
        if error is None:
            return None
        path = ".".join(map(str, error.absolute_path))
        return path, error.message[:REASON_MAX]

    return problem_of
