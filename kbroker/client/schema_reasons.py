"""Sentences for the reasons that a schema registry gives for an incompatible schema."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_REASON = re.compile(
    r"""\{errorType:['"](\w+)['"], description:['"](.*?)['"](?:, additionalInfo:.*)?\}""", re.DOTALL
)
# Messages that describe the check instead of a reason, as those of Confluent's registry.
_CONTEXT = re.compile(r"\{(oldSchemaVersion|oldSchema|validateFields|compatibility)\s*:")
_OLD = re.compile(r"\{oldSchemaVersion: (\d+)\}")
# A field without a default, in descriptions of kbroker and of Confluent's registry.
_NO_DEFAULT = re.compile(r"no field (\S+), and the reader has no default|[Tt]he field '([^']+)'")
_ADVICE = {
    "TYPE_MISMATCH": "keep the type of the field, or add a new field",
    "NAME_MISMATCH": "keep the name, or add it as an alias",
    "MISSING_ENUM_SYMBOLS": "keep these symbols, or give the enum a default",
    "MISSING_UNION_BRANCH": "keep this branch of the union",
    "FIXED_SIZE_MISMATCH": "keep the size, or add a new field",
}


class Incompatibility(NamedTuple):
    """Version with which a schema is incompatible, if the registry names it, and the reasons."""

    version: int | None
    sentences: list[str]


def explain_incompatibility(messages: Iterable[str], level: str) -> Incompatibility:
    """Convert the messages of a registry about an incompatible schema to sentences.

    Args:
        messages: Messages of a verbose compatibility check.
        level: Compatibility level of the check, such as `BACKWARD`.

    Returns:
        The version, and a sentence for each reason.
    """
    version, sentences = None, []
    for each in messages:
        if match := _OLD.fullmatch(each):
            version = int(match[1])
        if not _CONTEXT.match(each):
            sentences.append(_sentence(each, level))
    return Incompatibility(version, sentences)


def _sentence(text: str, level: str) -> str:
    """Return a reason of Confluent's form `{errorType:'TYPE', description:'TEXT'}` as a sentence."""
    match = _REASON.fullmatch(text)
    if not match:
        return text.strip("{}")
    kind, description = match.groups()
    if kind == "READER_FIELD_MISSING_DEFAULT_VALUE" and (field := _NO_DEFAULT.search(description)):
        name = field[1] or field[2]
        if level.startswith("BACKWARD"):
            return f"new field {name} has no default: add one"
        if level.startswith("FORWARD"):
            return f"removed field {name} has no default in the earlier version: keep the field"
        return (
            f"field {name} is in only one of both versions and has no default: add one, or keep it"
        )
    advice = _ADVICE.get(kind)
    return f"{description}: {advice}" if advice else description
