"""In-memory state of the registry, built only by replaying the records of its topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from .errors import no_such_schema, no_such_subject, no_such_version
from .records import (
    CLEAR_SUBJECT,
    CONFIG,
    DELETE_SUBJECT,
    MODE,
    SCHEMA,
    Entry,
    noop,
    tombstone,
)
from .values import Content, Level, Malformed, Mode, Reference, content_of

ID_MAX = 2**31 - 1
LEVEL = "compatibilityLevel"
NORMALIZE = "normalize"
# Maximum number of versions that `preferred_version` considers.
CANDIDATES_MAX = 100
T = TypeVar("T")
# Key type, subject and version (0 for settings) of a key.
Identity: TypeAlias = tuple[str, str | None, int]


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of a subject."""

    subject: str
    version: int
    id: int
    content: Content
    is_deleted: bool = False

    @property
    def subject_version(self) -> tuple[str, int]:
        """Subject and version; references contain these two values."""
        return self.subject, self.version

    def document(self) -> dict[str, object]:
        """Return the JSON fields for clients and for storage (without the deletion flag)."""
        return {
            "subject": self.subject,
            "version": self.version,
            "id": self.id,
            "guid": self.content.guid,
            **self.content.document(),
        }


# All versions of each subject, in no order.
Snapshot: TypeAlias = list[tuple[str, list[Registered]]]


class SchemaStore:
    """Subjects, versions, IDs and settings; `last_id` is the highest ID ever assigned."""

    def __init__(self) -> None:
        self.last_id = 0
        # Highest ID in the NOOP records, even if no version has that ID any more.
        self._recorded_id = 0
        self._subjects: dict[str, dict[int, Registered]] = {}
        # Versions by ID; permanently deleted versions are removed.
        self._versions_by_id: dict[int, dict[tuple[str, int], Registered]] = {}
        self._ids: dict[Content, set[int]] = {}
        self._guids: dict[str, Content] = {}
        self._referring: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self._configs: dict[str | None, Mapping[str, Any]] = {}
        self._modes: dict[str | None, Mode] = {}
        # Serialized keys of the values in the topic: each registry serializes keys in its own way.
        self._keys: dict[Identity, tuple[bytes, ...]] = {}
        # Deleted versions and settings of which another serialized key still has a value.
        self._orphans: set[Identity] = set()

    # -- replay

    def replay(self, entry: Entry) -> None:
        """Apply the next record of the topic. Raises ValueError, KeyError or TypeError."""
        kind, subject = entry.key.get("keytype"), entry.key.get("subject")
        if subject is not None and not isinstance(subject, str):
            raise Malformed("a subject must be a string")
        if entry.last_id is not None:
            self.last_id = max(self.last_id, entry.last_id)
            self._recorded_id = max(self._recorded_id, entry.last_id)
        match kind:
            case "NOOP":
                return
            case _ if kind == SCHEMA:
                self._replay_schema(entry)
                self._track_key((SCHEMA, subject, int(entry.key["version"])), entry)
            case _ if kind == CONFIG:
                _check_level(entry.value)
                _set(self._configs, subject, entry.value)
                self._track_key((CONFIG, subject, 0), entry)
            case _ if kind == MODE:
                mode = None if entry.value is None else Mode(entry.value["mode"])
                _set(self._modes, subject, mode)
                self._track_key((MODE, subject, 0), entry)
            case _ if kind == DELETE_SUBJECT:
                if entry.value is not None:
                    last = _check_number(entry.value["version"], "a version")
                    self._mark_deleted(entry.value["subject"], last)
            case _ if kind == CLEAR_SUBJECT:
                for each in [*self._subjects.get(subject or "", {}).values()]:
                    self._forget(each.subject_version)
            case _:
                raise ValueError(f"unknown record type {kind}")

    def _track_key(self, identity: Identity, entry: Entry) -> None:
        """Track the serialized keys that have a value in the topic."""
        key = entry.key_bytes()
        others = tuple(each for each in self._keys.pop(identity, ()) if each != key)
        keys = others if entry.value is None else (*others, key)
        if keys:
            self._keys[identity] = keys
        if entry.value is None and keys:
            self._orphans.add(identity)
        else:
            self._orphans.discard(identity)

    def keys(self, kind: str, subject: str | None, version: int = 0) -> tuple[bytes, ...]:
        """Return all serialized keys of a version or a setting that have a value in the topic."""
        return self._keys.get((kind, subject, version), ())

    def repairs(self) -> list[Entry]:
        """Create the records that are missing after another registry deleted something.

        Returns:
            Tombstones for deleted versions and settings of which another serialized key still has
            a value, and a NOOP with the highest ID if no version has that ID any more. Without
            these records, compaction would restore deleted versions, and the ID would be assigned
            again.
        """
        missing = [tombstone(key) for each in self._orphans for key in self._keys[each]]
        if self.last_id > self._recorded_id and self.last_id not in self._versions_by_id:
            missing.append(noop(self.last_id))
        return missing

    def _replay_schema(self, entry: Entry) -> None:
        subject_version = _key_of(entry.key)
        value = entry.value
        if value is None:
            self._forget(subject_version)
            return
        schema_id = _check_number(value["id"], "an id")
        new = Registered(
            *subject_version, schema_id, content_of(value), bool(value.get("deleted", False))
        )
        self._forget(subject_version)
        self._subjects.setdefault(new.subject, {})[new.version] = new
        self._versions_by_id.setdefault(new.id, {})[subject_version] = new
        self._ids.setdefault(new.content, set()).add(new.id)
        self._guids[new.content.guid] = new.content
        self.last_id = max(self.last_id, new.id)
        for each in new.content.references:
            self._referring.setdefault((each.subject, each.version), set()).add(subject_version)

    def _mark_deleted(self, subject: str, last: int) -> None:
        """Mark the versions of a subject up to `last` as soft-deleted."""
        for version, each in [*self._subjects.get(subject, {}).items()]:
            if version <= last and not each.is_deleted:
                marked = replace(each, is_deleted=True)
                self._subjects[subject][version] = self._versions_by_id[each.id][
                    marked.subject_version
                ] = marked

    def _forget(self, subject_version: tuple[str, int]) -> None:
        subject, version = subject_version
        removed = self._subjects.get(subject, {}).pop(version, None)
        if removed is None:
            return
        if not self._subjects[subject]:
            del self._subjects[subject]
        versions = self._versions_by_id[removed.id]
        del versions[subject_version]
        if not versions:
            del self._versions_by_id[removed.id]
        self._forget_id(removed)
        for each in removed.content.references:
            self._referring[each.subject, each.version].discard(subject_version)

    def _forget_id(self, removed: Registered) -> None:
        """Remove the ID of a version's content, unless another version has this ID and content."""
        versions = self._versions_by_id.get(removed.id, {})
        if any(each.content == removed.content for each in versions.values()):
            return
        ids = self._ids[removed.content]
        ids.discard(removed.id)
        if not ids:
            del self._ids[removed.content]
            del self._guids[removed.content.guid]

    # -- queries

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Return the subjects with a live version, or with a deleted one if requested."""
        return [
            subject
            for subject, versions in sorted(self._subjects.items())
            if deleted or not all(each.is_deleted for each in versions.values())
        ]

    def versions(self, subject: str, *, deleted: bool = False) -> list[Registered]:
        """Return the versions of a subject in order."""
        found = self._subjects.get(subject, {})
        return [found[each] for each in sorted(found) if deleted or not found[each].is_deleted]

    def existing_versions(self, subject: str, *, deleted: bool = False) -> list[Registered]:
        """Return the versions of a subject. Raises RegistryError if the subject has none."""
        found = self.versions(subject, deleted=deleted)
        if not found:
            raise no_such_subject(subject)
        return found

    def version(self, subject: str, version: int, *, deleted: bool = False) -> Registered:
        """Return one version, -1 for the latest that is not deleted. Raises RegistryError."""
        if version == -1:
            live = self.versions(subject)
            found = live[-1] if live else None
        else:
            found = self._subjects.get(subject, {}).get(version)
        if found is not None and (deleted or not found.is_deleted):
            return found
        self.existing_versions(subject, deleted=deleted)
        raise no_such_version(version)

    def versions_of_id(self, schema_id: int, *, deleted: bool = False) -> list[Registered]:
        """Return all versions with an ID. Raises RegistryError if there is none."""
        found = self._versions_by_id.get(schema_id)
        if not found:
            raise no_such_schema(schema_id)
        return [found[each] for each in sorted(found) if deleted or not found[each].is_deleted]

    def preferred_version(self, schema_id: int, subject: str) -> Registered:
        """Return one version with an ID, preferably one of `subject` that is not deleted.

        Only the first `CANDIDATES_MAX` versions are considered.

        Raises:
            RegistryError: No version has the ID.
        """
        found = self._versions_by_id.get(schema_id)
        if not found:
            raise no_such_schema(schema_id)
        return max(
            islice(found.values(), CANDIDATES_MAX),
            key=lambda each: (each.subject == subject, not each.is_deleted, each.version),
        )

    def content_of_id(self, schema_id: int) -> Content:
        """Return the schema with an ID, even if it is deleted. Raises RegistryError."""
        return self.versions_of_id(schema_id, deleted=True)[0].content

    def content_of_guid(self, guid: str) -> Content:
        """Return the schema with a GUID. Raises RegistryError."""
        if guid not in self._guids:
            raise no_such_schema(guid)
        return self._guids[guid]

    def ids_of_guid(self, guid: str) -> list[int]:
        """Return the IDs that the schema with a GUID has, in order. Raises RegistryError."""
        return sorted(self._ids[self.content_of_guid(guid)])

    def id_of(self, content: Content) -> int | None:
        """Return the lowest ID that a content has under any subject."""
        return min(self._ids.get(content, ()), default=None)

    def snapshot(self) -> Snapshot:
        """Return all versions of each subject, unsorted, to be read in a thread."""
        return [(subject, [*found.values()]) for subject, found in self._subjects.items()]

    def referring(self, subject: str, version: int, *, deleted: bool = False) -> list[Registered]:
        """Return the versions that refer to a version; `deleted` includes soft-deleted versions."""
        keys = sorted(self._referring.get((subject, version), ()))
        found = (self._subjects[name][number] for name, number in keys)
        return [each for each in found if deleted or not each.is_deleted]

    def referred(self, reference: Reference) -> Registered:
        """Return the version that a reference names, even if it is deleted. Raises RegistryError."""
        return self.version(reference.subject, reference.version, deleted=True)

    # -- settings

    def config(self, subject: str | None) -> Mapping[str, Any] | None:
        """Return the own settings of a subject, or None; for the subject None, the global settings."""
        return self._configs.get(subject)

    def level(self, subject: str) -> Level:
        """Return the effective compatibility level of a subject."""
        return Level(self._setting(subject, LEVEL, Level.BACKWARD))

    def normalizes(self, subject: str) -> bool:
        """Return True if schemas of a subject are always normalized."""
        return bool(self._setting(subject, NORMALIZE, False))

    def _setting(self, subject: str, name: str, default: object) -> Any:
        for each in (subject, None):
            value = self._configs.get(each, {}).get(name)
            if value is not None:
                return value
        return default

    def own_mode(self, subject: str | None) -> Mode | None:
        """Return the own mode of a subject, or None."""
        return self._modes.get(subject)

    def mode(self, subject: str | None) -> Mode:
        """Return the effective mode of a subject."""
        global_mode = self._modes.get(None, Mode.READWRITE)
        if global_mode == Mode.READONLY_OVERRIDE:
            return global_mode
        return self._modes.get(subject, global_mode)


def _key_of(key: Mapping[str, Any]) -> tuple[str, int]:
    if not isinstance(key["subject"], str):
        raise Malformed("a schema key must have a subject")
    return key["subject"], _check_number(key["version"], "a version")


def _check_number(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= ID_MAX:
        raise Malformed(f"{name} must be an integer up to {ID_MAX}")
    return value


def _check_level(config: Mapping[str, Any] | None) -> None:
    level = (config or {}).get(LEVEL)
    if level is not None:
        Level(level)


def _set(settings: dict[str | None, T], subject: str | None, value: T | None) -> None:
    if value is None:
        settings.pop(subject, None)
    else:
        settings[subject] = value
