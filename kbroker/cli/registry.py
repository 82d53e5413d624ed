"""The `kbroker registry` command: lists, registers, checks and deletes schemas of a registry."""

from __future__ import annotations

import difflib
import json
import sys
from typing import TYPE_CHECKING

import click

from .confirmation import Change, Preview, destructive, question_about
from .lazy import CommandGroup
from .output import Column, format_options, print_document, say, show, table, to_json
from .schema_files import file_options
from .schema_registries import registry_command
from .target import fail
from .units import ParamType

if TYPE_CHECKING:
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.client.schema_subjects import (
        CheckedSchema,
        SchemaSubjects,
        SchemaVersion,
        SubjectSummary,
    )

LEVELS = (
    "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
    "NONE",
)  # fmt: skip
COLUMNS = [
    Column("subject"), Column("versions"), Column("latest_id"), Column("type"), Column("compatibility"),
]  # fmt: skip
# HTTP status of the registration of an incompatible schema.
CONFLICT = 409


@click.group(cls=CommandGroup)
def registry() -> None:
    """List, register, check and delete schemas of a schema registry."""


@registry.command("list")
@click.argument("names", nargs=-1)
@click.option("--deleted", is_flag=True, help="Also list soft-deleted subjects and versions.")
@registry_command
@format_options
def list_(registry: SchemaRegistry, names: tuple[str, ...], deleted: bool, output: str) -> None:
    """List all subjects, or the subjects NAMES, with their versions."""
    subjects = _subjects(registry)
    found = subjects.summaries(names or subjects.names(deleted=deleted), deleted=deleted)
    missing = set(names) - {each.subject for each in found}
    if missing:
        fail(f"no subject {min(missing)!r}; `kbroker registry list` shows all subjects")
    rows = [_row(each) for each in found]
    show(output, rows, lambda wide: table(COLUMNS, rows, wide=wide))


def _row(one: SubjectSummary) -> dict[str, object]:
    latest = one.latest
    return {
        "subject": one.subject,
        "versions": one.versions,
        "latest_id": None if latest is None else latest.id,
        "type": None if latest is None else latest.type,
        "compatibility": one.level,
    }


class VersionName(ParamType[tuple[str, "int | str"]]):
    """SUBJECT or SUBJECT:VERSION; contexts such as `:.context:subject` contain colons too."""

    name = "subject"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, int | str]:
        subject, separator, version = str(value).rpartition(":")
        if separator and subject and (version.isdecimal() or version == "latest"):
            return subject, int(version) if version.isdecimal() else version
        return str(value), "latest"


@registry.command("show")
@click.argument("name", metavar="SUBJECT[:VERSION]", type=VersionName())
@click.option("--schema", "only_schema", is_flag=True, help="Print only the schema, as registered.")
@registry_command
@format_options
def show_(
    registry: SchemaRegistry, name: tuple[str, int | str], only_schema: bool, output: str
) -> None:
    """Show a version of a subject, by default the latest one."""
    found = _subjects(registry).version(*name)
    if only_schema:
        print_document(found.text)
        return
    show(output, _document(found), lambda _: _version_lines(found))


def _document(found: SchemaVersion) -> dict[str, object]:
    return {
        "subject": found.subject,
        "version": found.version,
        "id": found.id,
        "type": found.type,
        "references": [dict(each) for each in found.references],
        "schema": found.text,
    }


def _version_lines(found: SchemaVersion) -> list[str]:
    references = [
        f"reference {each.get('name')}: {each.get('subject')}:{each.get('version')}"
        for each in found.references
    ]
    return [_title(found), *references, "", *_schema_lines(found)]


def _title(found: SchemaVersion) -> str:
    return f"{found.subject}:{found.version} (ID {found.id}, {found.type})"


def _schema_lines(found: SchemaVersion) -> list[str]:
    """Return the lines of a schema; JSON documents are indented."""
    if found.type == "PROTOBUF":
        return found.text.splitlines()
    try:
        return to_json(json.loads(found.text), indent=2).splitlines()
    except (ValueError, RecursionError):
        return found.text.splitlines()


@registry.command()
@click.argument("subject")
@file_options
@registry_command
def register(registry: SchemaRegistry, subject: str, document: dict[str, object]) -> None:
    """Register the schema in FILE (- for standard input) as a new version of SUBJECT."""
    from kbroker.client.schema_registry import RegistryRejection

    subjects = _subjects(registry)
    earlier = subjects.registered(subject, document)
    try:
        found = subjects.register(subject, document)
    except RegistryRejection as error:
        checked = subjects.check(subject, document) if error.status == CONFLICT else None
        if checked is None or checked.is_compatible:
            raise
        level = subjects.level(subject)
        fail("\n".join([f"{subject}: not registered", *_incompatibility(subject, level, checked)]))
    is_new = earlier is None or earlier.version != found.version
    say(f"{_title(found)}: {'registered' if is_new else 'was registered before'}")


@registry.command()
@click.argument("name", metavar="SUBJECT[:VERSION]")
@file_options
@registry_command
def check(registry: SchemaRegistry, name: str, document: dict[str, object]) -> None:
    """Check whether the schema in FILE is compatible with SUBJECT, or with one version of it.

    Without a version, the level of the subject selects the versions. The exit status is 1 if the
    schema is incompatible; nothing is registered.
    """
    subjects = _subjects(registry)
    subject, version = VersionName().convert(name, None, None)
    is_one = name != subject
    _require_subject(subjects, subject)
    result = subjects.check(subject, document, version if is_one else None)
    level = subjects.level(subject)
    if result.is_compatible:
        say(f"compatible with {name} ({level})")
        return
    say(*_incompatibility(name, level, result))
    sys.exit(1)


def _require_subject(subjects: SchemaSubjects, subject: str) -> None:
    """Exit with a suggestion if a subject does not exist."""
    from kbroker.client.cluster import did_you_mean
    from kbroker.client.schema_registry import RegistryRejection
    from kbroker.client.schema_subjects import NO_SUCH_SUBJECT

    try:
        subjects.versions(subject)
    except RegistryRejection as error:
        if error.code != NO_SUCH_SUBJECT:
            raise
        known = subjects.names()
        derived = [f"{subject}{suffix}" for suffix in ("-value", "-key")]
        near = next((each for each in derived if each in known), None)
        hint = f"; did you mean {near!r}?" if near else did_you_mean(subject, known)
        fail(
            f"subject {subject!r} does not exist{hint or '.'} "
            "`kbroker registry list` shows all subjects"
        )


def _incompatibility(name: str, level: str, checked: CheckedSchema) -> list[str]:
    """Return lines with the sentences of a failed check; `name` is what the schema was checked with."""
    from kbroker.client.schema_reasons import explain_incompatibility

    version, reasons = explain_incompatibility(checked.reasons, level)
    title = f"incompatible with {name} ({level})"
    if version is not None and not name.endswith(f":{version}"):
        title += f", version {version}"
    if not reasons:
        return [f"{title}: the registry gives no reasons"]
    return [f"{title}:", *(f"  {each}" for each in reasons)]


@registry.command()
@click.argument("subject")
@click.argument("first", type=click.IntRange(1), required=False)
@click.argument("second", type=click.IntRange(1), required=False)
@registry_command
def compare(registry: SchemaRegistry, subject: str, first: int | None, second: int | None) -> None:
    """Print the differences of two versions of SUBJECT, by default of the last two.

    With only FIRST, it is compared with the latest version.
    """
    subjects = _subjects(registry)
    versions = subjects.versions(subject)
    if first is None and len(versions) < 2:
        say(
            f"{subject} has only version {versions[0]}" if versions else f"{subject} has no version"
        )
        return
    old = subjects.version(subject, versions[-2] if first is None else first)
    new = subjects.version(subject, versions[-1] if second is None else second)
    lines = difflib.unified_diff(
        _schema_lines(old), _schema_lines(new), _title(old), _title(new), lineterm=""
    )
    found = list(lines)
    say(*found or [f"{_title(old)} and {_title(new)} do not differ"])


@registry.group()
def level() -> None:
    """Show and change compatibility levels."""


@level.command("get")
@click.argument("subject", required=False)
@registry_command
def get_level(registry: SchemaRegistry, subject: str | None) -> None:
    """Print the compatibility level of SUBJECT, or the global one."""
    say(_subjects(registry).level(subject))


@level.command("set")
@click.argument("value", metavar="LEVEL", type=click.Choice(LEVELS, case_sensitive=False))
@click.argument("subject", required=False)
@registry_command
def set_level(registry: SchemaRegistry, value: str, subject: str | None) -> None:
    """Set the compatibility level of SUBJECT, or the global one."""
    _subjects(registry).set_level(value.upper(), subject)
    say(f"{subject or 'global level'}: {value.upper()}")


@level.command("unset")
@click.argument("subject")
@registry_command
@destructive
def unset_level(registry: SchemaRegistry, subject: str, change: Change) -> None:
    """Remove the level of SUBJECT, so that the global one applies."""
    subjects = _subjects(registry)
    now, later = subjects.level(subject), subjects.level()
    preview = Preview(
        f"Remove the level of {subject}?",
        [{"subject": subject, "compatibility": now, "new_compatibility": later}],
        [f"{subject}: {now}, will be {later} (global level)"],
    )
    if change.confirm(preview):
        subjects.unset_level(subject)
        found = subjects.level(subject)
        rows = [{"subject": subject, "compatibility": found}]
        change.report(rows, lambda _: [f"{subject}: {found} (global level)"])


@registry.command()
@click.argument("name", metavar="SUBJECT[:VERSION]")
@click.option(
    "--permanent",
    is_flag=True,
    help="Delete the schemas for good, also soft-deleted ones. Records that use them cannot be "
    "decoded afterwards.",
)
@registry_command
@destructive
def delete(registry: SchemaRegistry, name: str, permanent: bool, change: Change) -> None:
    """Delete all versions of SUBJECT, or one of them.

    Without --permanent, schemas can still be read by their ID, so that records can be decoded.
    """
    subjects = _subjects(registry)
    subject, chosen = VersionName().convert(name, None, None)
    numbers = subjects.versions(subject, deleted=permanent)
    if name != subject:
        numbers = [numbers[-1] if chosen == "latest" else int(chosen)]
    found = [subjects.version(subject, each, deleted=permanent) for each in numbers]
    rows = [{**_document(each), "permanent": permanent} for each in found]
    verb = "Permanently delete" if permanent else "Delete"
    question = question_about(verb, [name], "subject" if name == subject else "version")
    if change.confirm(Preview(question, rows, [_title(each) for each in found])):
        # The registry deletes all versions of a subject, also those that were not shown.
        if name == subject and subjects.versions(subject, deleted=permanent) != numbers:
            fail(
                f"{subject} has other versions than shown; nothing was deleted, repeat the command"
            )
        subjects.delete(subject, None if name == subject else numbers[0], permanent=permanent)
        change.report(rows, lambda _: [f"{_title(each)}: deleted" for each in found])


def _subjects(registry: SchemaRegistry) -> SchemaSubjects:
    from kbroker.client.schema_subjects import SchemaSubjects

    return SchemaSubjects(registry)
