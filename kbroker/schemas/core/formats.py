"""Schemas of every type, from what is registered."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from .avro import AvroSchema
from .errors import RegistryError, invalid_schema, schema_too_large
from .limits import DIFFERENCES_MAX, REFERENCES_MAX, TEXT_MAX, Budget
from .parsed import Difference, Parsed
from .protobuf import ProtobufSchema
from .store import SchemaStore
from .values import AVRO, JSON, PROTOBUF, Content, Level, Reference

Texts: TypeAlias = Mapping[str, str]
"""Of the schemas that one refers to, by the names under which it does; those come first that others
need."""


def _avro(text: str, texts: Texts) -> Parsed:
    return AvroSchema(text, texts.values())


def _json(text: str, texts: Texts) -> Parsed:
    from .json_schema import JsonSchema  # a broker needs what it imports for no other type

    return JsonSchema(text, texts)


_TYPES: Mapping[str, Callable[[str, Texts], Parsed]] = {
    AVRO: _avro,
    JSON: _json,
    PROTOBUF: ProtobufSchema,
}


def check_size(content: Content) -> None:
    """Raises RegistryError for what nobody looks into."""
    if content.type not in _TYPES:
        raise invalid_schema(f"there is no type {content.type}; there are {', '.join(_TYPES)}")
    if len(content.text) > TEXT_MAX:
        raise schema_too_large(f"it has more than {TEXT_MAX} characters")
    if len(content.references) > REFERENCES_MAX:
        raise invalid_schema(f"it has more than {REFERENCES_MAX} references")


def referred_texts(store: SchemaStore, content: Content, budget: Budget | None = None) -> Texts:
    """Return the texts of direct and indirect references of a schema. Raises RegistryError.

    Parameters: `budget` bounds the references of several schemas together.
    """
    texts: dict[str, str] = {}
    seen: set[tuple[str, str, int]] = set()
    size = 0
    # The second time that a reference is met, all that it needs has been met.
    left = [(each, False) for each in reversed(content.references)]
    while left:
        each, is_ready = left.pop()
        found = _referred(store, each)
        if is_ready:
            texts.setdefault(each.name, found.text)
        elif each not in seen:
            seen.add(each)
            size += len(found.text)
            if budget is not None:
                budget.spend()
            if len(seen) > REFERENCES_MAX or size > TEXT_MAX:
                raise invalid_schema("it refers to too much")
            left.append((each, True))
            left += [(other, False) for other in reversed(found.references)]
    return texts


def _referred(store: SchemaStore, reference: Reference) -> Content:
    try:
        found = store.referred(reference)
    except RegistryError:
        raise invalid_schema(
            f'No schema reference found for subject "{reference.subject}" and version '
            f"{reference.version}"
        ) from None
    return found.content


def parse(content: Content, texts: Texts) -> Parsed:
    """Read a schema. Raises RegistryError."""
    check_size(content)
    try:
        return _TYPES[content.type](content.text, texts)
    except RecursionError:
        raise invalid_schema("it is nested too deep") from None


def serialized(content: Content, texts: Texts) -> str:
    """A file of Protobuf as its descriptor, in base64. Raises RegistryError."""
    from .protobuf_building import descriptor_of  # only the process that makes descriptors needs it

    try:
        return base64.b64encode(descriptor_of(content.text, texts)).decode()
    except RecursionError:
        raise invalid_schema("it is nested too deep") from None


def stored(content: Content, parsed: Parsed, *, normalize: bool) -> Content:
    """The same schema as it is registered."""
    return replace(content, text=parsed.normalized if normalize else parsed.canonical)


def differences(
    new: Parsed, kind: str, level: Level, old_content: Content, old_texts: Texts
) -> Iterator[Difference]:
    """Why a new schema does not go with one before it. Raises RegistryError."""
    if old_content.type != kind:
        yield Difference("TYPE_CHANGED", "/", f"it was {old_content.type}, and is {kind}")
        return
    old = parse(old_content, old_texts)
    budget = Budget()
    found = []
    if level.reads_old:
        found += [*new.differences(old, budget)]
    if level.is_read_by_old:
        found += [*old.differences(new, budget)]
    yield from dict.fromkeys(found[:DIFFERENCES_MAX])
