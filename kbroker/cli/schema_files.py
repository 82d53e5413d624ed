"""Schema files of the command line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])

TYPES = ("AVRO", "JSON", "PROTOBUF")
# Types of schema files by the ends of their names.
TYPES_BY_SUFFIX = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}


def file_options(command: Command) -> Command:
    """Add FILE, `--type` and `--reference` to a command; it receives `document`."""

    @click.argument("file", type=click.File("rb", lazy=False))
    @click.option(
        "--type",
        "kind",
        type=click.Choice(TYPES, case_sensitive=False),
        help="Type of the schema.  [default: by the suffix .avsc, .proto or .json]",
    )
    @click.option(
        "--reference",
        "references",
        multiple=True,
        metavar="NAME=SUBJECT:VERSION",
        help="Schema that FILE refers to by NAME (a Protobuf import, an Avro type or a JSON $ref); "
        "can be given several times.",
    )
    @functools.wraps(command)
    def with_document(
        *args: object, file: BinaryIO, kind: str | None, references: tuple[str, ...], **kw: object
    ) -> object:
        return command(*args, document=document_of(file, kind, references), **kw)

    return with_document  # type: ignore[return-value]


def document_of(file: BinaryIO, kind: str | None, references: tuple[str, ...]) -> dict[str, object]:
    """Return the request body for a schema file.

    Args:
        file: The file.
        kind: Type of the schema, or None for that of the suffix.
        references: NAME=SUBJECT:VERSION for each schema that the file refers to.

    Raises:
        BadParameter: A reference is invalid.
        UsageError: The type is unknown, or the file is not text.
    """
    name = str(getattr(file, "name", "-"))
    kind = kind or TYPES_BY_SUFFIX.get(Path(name).suffix)
    if kind is None:
        raise click.UsageError(f"unknown type of {name}; use --type (valid: {', '.join(TYPES)})")
    try:
        text = file.read().decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{name} is not UTF-8; a schema file must be text") from None
    document: dict[str, object] = {"schema": text, "schemaType": kind.upper()}
    if references:
        document["references"] = [_reference(each) for each in references]
    return document


def _reference(text: str) -> dict[str, object]:
    name, separator, target = text.rpartition("=")
    subject, _, version = target.rpartition(":")
    if not separator or not name or not subject or not version.isdecimal():
        raise click.BadParameter(
            f"invalid {text!r}; expected NAME=SUBJECT:VERSION", param_hint="--reference"
        )
    return {"name": name, "subject": subject, "version": int(version)}
