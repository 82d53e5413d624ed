"""Subjects of a schema registry: list, compare, register, check and delete their versions."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from .schema_registry import RegistryRejection, SchemaError, SchemaRegistry, kind_of

# Number of requests that are sent at the same time.
CONCURRENT_REQUESTS = 8
NO_SUCH_SUBJECT, NO_SUCH_VERSION, NO_OWN_LEVEL = 40401, 40402, 40408
SUBJECT_SOFT_DELETED, VERSION_SOFT_DELETED = 40404, 40406
# Confluent's code for a version in a request that is no version, and the status of older registries.
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    type: str
    text: str
    references: Sequence[Mapping[str, object]] = ()


class SubjectSummary(NamedTuple):
    """A subject with all its versions; `latest` is None if the latest version cannot be read."""

    subject: str
    versions: list[int]
    latest: SchemaVersion | None
    level: str


class CheckedSchema(NamedTuple):
    """Result of a compatibility check, with the reasons of an incompatible schema."""

    is_compatible: bool
    reasons: list[str]


class SchemaSubjects:
    """Requests about the subjects of a registry.

    All methods raise RegistryRejection if the registry rejects a request, and SchemaError if it does
    not respond.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def names(self, *, deleted: bool = False) -> list[str]:
        """Return the names of all subjects, or with `deleted` also of soft-deleted ones."""
        found = self._registry.ask(f"subjects?deleted={str(deleted).lower()}")
        return sorted(map(str, self._list(found)))

    def summaries(self, names: Sequence[str], *, deleted: bool = False) -> list[SubjectSummary]:
        """Return a summary for each subject; subjects that were deleted concurrently are omitted."""
        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as threads:
            found = threads.map(lambda name: self._summary(name, deleted), names)
            return [each for each in found if each is not None]

    def _summary(self, name: str, deleted: bool) -> SubjectSummary | None:
        try:
            versions = self.versions(name, deleted=deleted)
            latest = self.version(name, max(versions), deleted=deleted) if versions else None
            return SubjectSummary(name, versions, latest, self.level(name))
        except RegistryRejection as error:
            if error.status == 404:
                return None
            raise

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the version numbers of a subject, or with `deleted` also those of deleted ones."""
        flag = str(deleted).lower()
        found = self._list(self._registry.ask(f"{_path(subject)}/versions?deleted={flag}"))
        return sorted(each for each in found if isinstance(each, int))

    def version(
        self, subject: str, version: int | str = LATEST, *, deleted: bool = False
    ) -> SchemaVersion:
        """Return a version of a subject."""
        flag = str(deleted).lower()
        answer = self._object(
            self._registry.ask(f"{_path(subject)}/versions/{version}?deleted={flag}")
        )
        return _version_of(answer)

    def register(self, subject: str, document: Mapping[str, object]) -> SchemaVersion:
        """Register a schema if necessary, and return its version."""
        self._registry.ask(f"{_path(subject)}/versions", method="POST", body=document)
        return self._version_with(subject, document)

    def registered(self, subject: str, document: Mapping[str, object]) -> SchemaVersion | None:
        """Return the version of a schema in a subject, or None if it is not registered there."""
        try:
            return self._version_with(subject, document)
        except RegistryRejection as error:
            if error.status == 404:
                return None
            raise

    def _version_with(self, subject: str, document: Mapping[str, object]) -> SchemaVersion:
        """Return the version that has a schema. Some registries do not repeat its type."""
        answer = self._object(self._registry.ask(_path(subject), method="POST", body=document))
        return _version_of({"schemaType": kind_of(document), **answer})

    def check(
        self, subject: str, document: Mapping[str, object], version: int | str | None = None
    ) -> CheckedSchema:
        """Check a schema against a version, or against those that the level of the subject selects.

        A schema is compatible with a subject that does not exist.
        """
        tail = "" if version is None else f"/{version}"
        path = f"compatibility/{_path(subject)}/versions{tail}?verbose=true"
        try:
            answer = self._object(self._registry.ask(path, method="POST", body=document))
        except RegistryRejection as error:
            if error.code == NO_SUCH_SUBJECT:
                return CheckedSchema(True, [])
            raise
        reasons = self._list(answer.get("messages") or [])
        return CheckedSchema(bool(answer.get("is_compatible")), [str(each) for each in reasons])

    def level(self, subject: str | None = None) -> str:
        """Return the compatibility level of a subject, or the global one."""
        path = "config" if subject is None else f"config/{_quoted(subject)}?defaultToGlobal=true"
        answer = self._object(self._registry.ask(path))
        return str(answer.get("compatibilityLevel") or answer.get("compatibility"))

    def set_level(self, level: str, subject: str | None = None) -> None:
        """Change the compatibility level of a subject, or the global one."""
        path = "config" if subject is None else f"config/{_quoted(subject)}"
        self._registry.ask(path, method="PUT", body={"compatibility": level})

    def unset_level(self, subject: str) -> None:
        """Remove the compatibility level of a subject, so that the global one applies."""
        self._registry.ask(f"config/{_quoted(subject)}", method="DELETE")

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> None:
        """Delete a subject, or one version. A permanent deletion also does the soft deletion first."""
        path = _path(subject) if version is None else f"{_path(subject)}/versions/{version}"
        try:
            self._registry.ask(path, method="DELETE")
        except RegistryRejection as error:
            is_deleted = error.code in (SUBJECT_SOFT_DELETED, VERSION_SOFT_DELETED, NO_SUCH_SUBJECT)
            if not (permanent and is_deleted):
                raise
        if permanent:
            self._registry.ask(f"{path}?permanent=true", method="DELETE")

    def _list(self, answer: object) -> list[object]:
        if not isinstance(answer, list):
            raise SchemaError(f"{self._registry.address} is not a schema registry")
        return answer

    def _object(self, answer: object) -> Mapping[str, object]:
        if not isinstance(answer, dict):
            raise SchemaError(f"{self._registry.address} is not a schema registry")
        return answer


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _path(subject: str) -> str:
    return f"subjects/{_quoted(subject)}"


def _version_of(answer: Mapping[str, object]) -> SchemaVersion:
    """Return the version in a response. Raises SchemaError."""
    version, schema_id = answer.get("version"), answer.get("id")
    references = answer.get("references")
    if not isinstance(version, int) or not isinstance(schema_id, int):
        raise SchemaError("the registry returned a version without number or ID")
    return SchemaVersion(
        str(answer.get("subject")),
        version,
        schema_id,
        kind_of(answer),
        str(answer.get("schema", "")),
        references if isinstance(references, list) else (),
    )
