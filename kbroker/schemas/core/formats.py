"""Parsing and comparison of schemas of every type."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from .avro import AvroSchema
from .errors import RegistryError, invalid_schema, schema_too_large
from .limits import DIFFERENCES_MAX, REFERENCES_MAX, TEXT_MAX, Budget
from .parsed import Difference, ParsedSchema
from .protobuf import ProtobufSchema
from .store import SchemaStore
from .values import AVRO, JSON, PROTOBUF, Content, Level, Reference

# Texts of a schema's references by reference name, dependencies first.
Texts: TypeAlias = Mapping[str, str]


def _avro(text: str, texts: Texts) -> ParsedSchema:
    return AvroSchema(text, texts.values())


def _json(text: str, texts: Texts) -> ParsedSchema:
    from .json_schema import JsonSchema  # imports jsonschema, which only this type needs

    return JsonSchema(text, texts)


_TYPES: Mapping[str, Callable[[str, Texts], ParsedSchema]] = {
    AVRO: _avro,
    JSON: _json,
    PROTOBUF: ProtobufSchema,
}


def check_size(content: Content) -> None:
    """Raise RegistryError if a schema's type is unknown or a size limit is exceeded."""
    if content.type not in _TYPES:
        raise invalid_schema(f"unknown schema type {content.type} (valid: {', '.join(_TYPES)})")
    if len(content.text) > TEXT_MAX:
        raise schema_too_large(f"more than {TEXT_MAX} characters")
    if len(content.references) > REFERENCES_MAX:
        raise invalid_schema(f"more than {REFERENCES_MAX} references")


def referred_texts(store: SchemaStore, content: Content, budget: Budget | None = None) -> Texts:
    """Return the texts of direct and indirect references of a schema.

    Args:
        store: The schema store.
        content: The schema.
        budget: Limits the total number of references of several schemas.

    Raises:
        RegistryError: A reference does not exist, or the schema has too many references.
    """
    texts: dict[str, str] = {}
    seen: set[tuple[str, str, int]] = set()
    size = 0
    # Depth-first order: a reference is added to `texts` when it is popped for the second time, after
    # its own references. `pending` contains references, each with True if this is its second time.
    pending = [(each, False) for each in reversed(content.references)]
    while pending:
        each, is_ready = pending.pop()
        found = _referenced_content(store, each)
        if is_ready:
            texts.setdefault(each.name, found.text)
        elif each not in seen:
            seen.add(each)
            size += len(found.text)
            if budget is not None:
                budget.spend()
            if len(seen) > REFERENCES_MAX or size > TEXT_MAX:
                raise invalid_schema("too many references")
            pending.append((each, True))
            pending += [(other, False) for other in reversed(found.references)]
    return texts


def _referenced_content(store: SchemaStore, reference: Reference) -> Content:
    try:
        found = store.referred(reference)
    except RegistryError:
        raise invalid_schema(
            f'No schema reference found for subject "{reference.subject}" and version '
            f"{reference.version}"
        ) from None
    return found.content


def parse(content: Content, texts: Texts) -> ParsedSchema:
    """Parse a schema. Raises RegistryError."""
    check_size(content)
    try:
        return _TYPES[content.type](content.text, texts)
    except RecursionError:
        raise invalid_schema("nested too deeply") from None


def serialized(content: Content, texts: Texts) -> str:
    """Return the descriptor of a Protobuf file in base64. Raises RegistryError."""
    from .protobuf_building import descriptor_of  # only worker processes need it

    try:
        return base64.b64encode(descriptor_of(content.text, texts)).decode()
    except RecursionError:
        raise invalid_schema("nested too deeply") from None


def stored(content: Content, parsed: ParsedSchema, *, normalize: bool) -> Content:
    """Return the schema with the text to store."""
    return replace(content, text=parsed.normalized if normalize else parsed.canonical)


def differences(
    new: ParsedSchema, kind: str, level: Level, old_content: Content, old_texts: Texts
) -> Iterator[Difference]:
    """Yield why a new schema is incompatible with an earlier one. Raises RegistryError."""
    if old_content.type != kind:
        yield Difference("TYPE_CHANGED", "/", f"the type changed from {old_content.type} to {kind}")
        return
    old = parse(old_content, old_texts)
    budget = Budget()
    found = []
    if level.reads_old:
        found += [*new.differences(old, budget)]
    if level.is_read_by_old:
        found += [*old.differences(new, budget)]
    yield from dict.fromkeys(found[:DIFFERENCES_MAX])
