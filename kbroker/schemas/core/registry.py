"""Planning of changes: turns a request into the records to write and the response."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar
from unicodedata import category

from .errors import (
    INCOMPATIBLE,
    INVALID_LEVEL,
    INVALID_MODE,
    INVALID_SUBJECT,
    INVALID_VERSION,
    NO_OWN_LEVEL,
    NO_OWN_MODE,
    NOT_PERMITTED,
    REFERENCE_EXISTS,
    SUBJECT_NOT_SOFT_DELETED,
    SUBJECT_SOFT_DELETED,
    VERSION_NOT_SOFT_DELETED,
    VERSION_SOFT_DELETED,
    RegistryError,
    invalid_schema,
    no_such_schema,
    no_such_subject,
    no_such_version,
)
from .formats import Texts, check_size, differences, parse, referred_texts, stored
from .limits import COMPARED_REFERENCES_MAX, Budget
from .parsed import Difference
from .records import (
    CONFIG,
    DELETE_SUBJECT,
    MODE,
    SCHEMA,
    Entry,
    noop,
    schema_key,
    subject_key,
    tombstone,
)
from .store import ID_MAX, LEVEL, NORMALIZE, Registered, SchemaStore
from .values import PROTOBUF, Content, Level, Mode

VERSION_MAX = ID_MAX
# Maximum number of characters of a subject's name.
SUBJECT_MAX = 1024
# Subject names that Confluent's registry reserves.
RESERVED_SUBJECTS = frozenset({"__GLOBAL", "__EMPTY"})
# Maximum number of characters of schemas that are checked for equivalence.
EQUIVALENCE_CHARACTERS_MAX = 200_000
CONFIG_KEYS = frozenset(
    {
        LEVEL,
        NORMALIZE,
        "alias",
        "compatibilityGroup",
        "defaultMetadata",
        "overrideMetadata",
        "defaultRuleSet",
        "overrideRuleSet",
    }
)


T = TypeVar("T")


class WritePlan(NamedTuple, Generic[T]):
    """Records to write, and the response to send after they have been written."""

    entries: Sequence[Entry]
    response: T


class CheckTask(NamedTuple):
    """A schema to check, with everything that the check depends on.

    Attributes:
        content: The schema to check.
        texts: Texts of the schema's references by name.
        level: Compatibility level of the subject.
        normalize: Normalize the schema.
        earlier: Versions to compare with and the texts of their references, newest first.
    """

    content: Content
    texts: Texts
    level: Level
    normalize: bool
    earlier: tuple[tuple[Registered, Texts], ...]


class CheckResult(NamedTuple):
    """Result of a check: the schema as it is stored, and the incompatibilities."""

    content: Content
    reasons: Sequence[str]


def check_subject(subject: str) -> None:
    """Raise RegistryError if a subject name is invalid."""
    is_text = not any(category(each) == "Cc" for each in subject)
    if not 0 < len(subject) <= SUBJECT_MAX or subject in RESERVED_SUBJECTS or not is_text:
        raise RegistryError(
            INVALID_SUBJECT, f"The specified subject '{subject[:100]}' is not a valid."
        )


def version_of(text: str) -> int:
    """Parse a version; return -1 for the latest. Raises RegistryError."""
    if text.strip().lower() in ("latest", "-1"):
        return -1
    if (
        not (text.isascii() and text.isdecimal())
        or len(text) > 10
        or not 0 < int(text) <= VERSION_MAX
    ):
        raise RegistryError(
            INVALID_VERSION,
            f"The specified version '{text[:100]}' is not a valid version id. Allowed values are "
            'between [1, 2^31-1] and the string "latest"',
        )
    return int(text)


# -- checks, which may be slow


def prepare_check(
    store: SchemaStore,
    subject: str,
    content: Content,
    *,
    normalize: bool = False,
    with_version: int | None = None,
    registering: bool = False,
) -> CheckTask:
    """Collect the versions that a schema must be compatible with.

    Args:
        store: The schema store.
        subject: Subject of the schema.
        content: The schema to check.
        normalize: Normalize the schema even if the subject's settings do not request it.
        with_version: Compare only with this version (-1 for the latest).
        registering: Compare with no version if the mode of the subject is IMPORT.

    Raises:
        RegistryError: The schema is too large, or a reference or version does not exist.
    """
    check_size(content)
    level = store.level(subject)
    earlier = store.versions(subject)[::-1]
    if with_version is not None:
        earlier = _requested_version(store, subject, with_version)
    elif not level.is_transitive:
        earlier = earlier[:1]
    if level is Level.NONE or (registering and store.mode(subject) is Mode.IMPORT):
        earlier = []
    references = Budget(COMPARED_REFERENCES_MAX)
    return CheckTask(
        content,
        referred_texts(store, content),
        level,
        normalize or store.normalizes(subject),
        tuple((each, referred_texts(store, each.content, references)) for each in earlier),
    )


def _requested_version(store: SchemaStore, subject: str, version: int) -> list[Registered]:
    """Return a list with one version; an empty list for the latest of a subject without versions."""
    try:
        return [store.version(subject, version)]
    except RegistryError:
        if version == -1:
            return []
        raise no_such_version(version) from None


def check(task: CheckTask) -> CheckResult:
    """Check that a schema is well-formed and compatible. Raises RegistryError if it is malformed."""
    parsed = parse(task.content, task.texts)
    content = stored(task.content, parsed, normalize=task.normalize)
    reasons: list[str] = []
    for old, texts in task.earlier:
        found = [*differences(parsed, content.type, task.level, old.content, texts)]
        if found:
            reasons = [*_messages(found, old, task.level)]
            break
    return CheckResult(content, reasons)


def _messages(found: Sequence[Difference], old: Registered, level: Level) -> Iterator[str]:
    yield from map(str, found)
    yield f"{{oldSchemaVersion: {old.version}}}"
    yield f"{{compatibility: '{level}'}}"


# -- schemas


def find(store: SchemaStore, subject: str, content: Content, *, deleted: bool) -> Registered:
    """Return the version with exactly this schema. Raises RegistryError."""
    versions = store.versions(subject, deleted=deleted)
    if not versions:
        raise no_such_subject(subject)
    has_no_metadata = content.metadata is None and content.rule_set is None
    found = _find_latest(versions, content, any_metadata=has_no_metadata)
    if found is None:
        raise no_such_schema()
    return found


def _find_latest(
    versions: Sequence[Registered], content: Content, *, any_metadata: bool = False
) -> Registered | None:
    """Return the newest version with a schema, or None.

    Args:
        versions: Versions of one subject, oldest first.
        content: The schema.
        any_metadata: Ignore differences in metadata and rule sets.
    """
    candidates = [
        each
        for each in reversed(versions)
        if _equal_except_text(each.content, content, any_metadata)
    ]
    identical = (each for each in candidates if each.content.text == content.text)
    return next(identical, None) or _find_equivalent(candidates, content)


def _equal_except_text(known: Content, requested: Content, any_metadata: bool) -> bool:
    """Return True if everything except the text is equal."""
    if (known.type, known.references) != (requested.type, requested.references):
        return False
    metadata = requested.metadata, requested.rule_set
    return any_metadata or (known.metadata, known.rule_set) == metadata


def _find_equivalent(versions: Sequence[Registered], content: Content) -> Registered | None:
    """Return the first version whose text differs only in formatting, or None.

    Other registries on the same topic, such as Karapace, reorder JSON fields and add blank lines to
    Protobuf files. They do not change the length of a JSON text.
    """
    candidates = [
        each
        for each in versions
        if content.type == PROTOBUF or len(each.content.text) == len(content.text)
    ]
    sizes = accumulate(len(each.content.text) for each in candidates)
    limited = [
        each
        for each, size in zip(candidates, sizes, strict=True)
        if size <= EQUIVALENCE_CHARACTERS_MAX
    ]
    # Usually there is no candidate, so that nothing needs to be parsed.
    if not limited or len(content.text) > EQUIVALENCE_CHARACTERS_MAX:
        return None
    requested = _normalized_text(content)
    return next((each for each in limited if _normalized_text(each.content) == requested), None)


def _normalized_text(content: Content) -> str:
    """Return the text without differences in formatting."""
    if content.type == PROTOBUF:
        return "\n".join(line for line in content.text.splitlines() if line.strip())
    try:
        return json.dumps(json.loads(content.text), sort_keys=True)
    except (ValueError, RecursionError):  # malformed JSON that another registry has written
        return content.text


def plan_registration(
    store: SchemaStore,
    subject: str,
    checked: CheckResult,
    *,
    schema_id: int = -1,
    version: int = -1,
) -> WritePlan[Registered]:
    """Plan the registration of a schema. The plan is empty if the schema is registered already.

    Args:
        store: The schema store.
        subject: Subject that gets the new version.
        checked: Result of the check.
        schema_id: Requested ID (import mode only), or -1.
        version: Requested version, or -1.

    Raises:
        RegistryError: The schema is incompatible, or the mode does not permit the registration.
    """
    check_subject(subject)
    content, mode = checked.content, store.mode(subject)
    known = _find_latest(store.versions(subject), content)
    if known is not None and schema_id in (-1, known.id) and version in (-1, 0, known.version):
        return WritePlan((), known)
    _check_may_write(store, subject)
    if schema_id >= 0 and mode is not Mode.IMPORT:
        raise RegistryError(NOT_PERMITTED, f"Subject {subject} is not in import mode")
    if mode is Mode.IMPORT and schema_id < 0:
        raise RegistryError(NOT_PERMITTED, f"Subject {subject} is in import mode: specify an ID")
    if checked.reasons:
        raise incompatible(subject, checked.reasons)
    versions = store.versions(subject, deleted=True)
    next_version = versions[-1].version + 1 if versions else 1
    if mode is not Mode.IMPORT and version > 0 and version != next_version:
        raise invalid_schema("Version is not one more than previous version")
    new = Registered(
        subject,
        version if version > 0 else next_version,
        _id_for(store, content, schema_id),
        content,
    )
    if max(new.id, new.version) > VERSION_MAX:
        raise invalid_schema("all schema IDs are used")
    deletions = _delete_replaced(store, versions, new)
    return WritePlan([*deletions, _entry_of(new)], new)


def _delete_replaced(
    store: SchemaStore, versions: Sequence[Registered], new: Registered
) -> Iterator[Entry]:
    """Yield deletions of soft-deleted versions that the new version with the same ID replaces."""
    for each in versions:
        is_replaced = each.is_deleted and each.id == new.id and each.version < new.version
        if is_replaced and not store.referring(*each.subject_version, deleted=True):
            yield from _deletion(store, SCHEMA, *each.subject_version)


def _deletion(
    store: SchemaStore, kind: str, subject: str | None, version: int = 0
) -> Iterator[Entry]:
    """Yield tombstones for a version or a setting, for each form of its key in the topic."""
    key = schema_key(subject, version) if kind == SCHEMA and subject else subject_key(kind, subject)
    entry = Entry(key)
    yield entry
    for each in store.keys(kind, subject, version):
        if each != entry.key_bytes():
            yield tombstone(each)


def incompatible(subject: str, reasons: Sequence[str]) -> RegistryError:
    """Return the error for an incompatible schema."""
    return RegistryError(
        INCOMPATIBLE,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
        f"details: [{', '.join(reasons)}]",
    )


def _id_for(store: SchemaStore, content: Content, requested: int) -> int:
    """Return the ID of a new version: the requested one, the ID of the content, or the next ID."""
    known = store.id_of(content)
    if requested < 0:
        return store.last_id + 1 if known is None else known
    try:
        current = store.content_of_id(requested)
    except RegistryError:
        return requested
    if current != content:
        raise RegistryError(
            NOT_PERMITTED, f"Overwrite new schema with id {requested} is not permitted."
        )
    return requested


def _entry_of(each: Registered) -> Entry:
    value = {**each.document(), "deleted": each.is_deleted}
    return Entry(schema_key(*each.subject_version), value)


def _check_may_write(store: SchemaStore, subject: str | None) -> None:
    if store.mode(subject) in (Mode.READONLY, Mode.READONLY_OVERRIDE):
        raise RegistryError(NOT_PERMITTED, f"Subject {subject} is in read-only mode")


def plan_version_deletion(
    store: SchemaStore, subject: str, version: int, *, permanent: bool
) -> WritePlan[int]:
    """Plan the deletion of a version; permanent deletion requires a soft-deleted version.

    Raises:
        RegistryError: The version is missing or referenced, or the mode is read-only.
    """
    found = store.version(subject, version, deleted=True)
    described = f"Subject '{subject}' Version {found.version}"
    if found.is_deleted and not permanent:
        raise RegistryError(
            VERSION_SOFT_DELETED,
            f"{described} was soft deleted. Set permanent=true to delete permanently",
        )
    _check_may_write(store, subject)
    _check_not_referenced(store, found, permanent=permanent)
    if not permanent:
        return WritePlan([_entry_of(replace(found, is_deleted=True))], found.version)
    if not found.is_deleted:
        raise RegistryError(
            VERSION_NOT_SOFT_DELETED,
            f"{described} was not deleted first before being permanently deleted",
        )
    deletions = [*_deletion(store, SCHEMA, *found.subject_version)]
    if len(store.versions(subject, deleted=True)) == 1:
        deletions += _settings_deletion(store, subject)
    return WritePlan([*deletions, noop(store.last_id)], found.version)


def _settings_deletion(store: SchemaStore, subject: str) -> Iterator[Entry]:
    """Yield tombstones for the settings of a subject without versions."""
    for kind, known in ((CONFIG, store.config(subject)), (MODE, store.own_mode(subject))):
        if known is not None:
            yield from _deletion(store, kind, subject)


def plan_subject_deletion(
    store: SchemaStore, subject: str, *, permanent: bool
) -> WritePlan[list[int]]:
    """Plan the deletion of all versions of a subject; permanent deletion includes its settings.

    Raises:
        RegistryError: A version is referenced or not soft-deleted, or the mode is read-only.
    """
    versions = store.existing_versions(subject, deleted=True)
    live = [each for each in versions if not each.is_deleted]
    if not permanent and not live:
        raise RegistryError(
            SUBJECT_SOFT_DELETED,
            f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
        )
    _check_may_write(store, subject)
    for each in versions if permanent else live:
        _check_not_referenced(store, each, permanent=permanent, except_subject=subject)
        if permanent and not each.is_deleted:
            raise RegistryError(
                SUBJECT_NOT_SOFT_DELETED,
                f"Subject '{subject}' was not deleted first before being permanently deleted",
            )
    if permanent:
        # Versions of a subject only reference earlier versions, so delete them in reverse order.
        deletions = [
            entry
            for each in reversed(versions)
            for entry in _deletion(store, SCHEMA, *each.subject_version)
        ]
        deletions += _settings_deletion(store, subject)
        return WritePlan([*deletions, noop(store.last_id)], [each.version for each in versions])
    # Compaction removes earlier deletion records of the subject, so the new record must include
    # versions that were deleted before.
    value = {"subject": subject, "version": versions[-1].version}
    deletion = Entry(subject_key(DELETE_SUBJECT, subject), value)
    return WritePlan([deletion], [each.version for each in live])


def _check_not_referenced(
    store: SchemaStore, each: Registered, *, permanent: bool, except_subject: str | None = None
) -> None:
    """Raise RegistryError if another schema refers to a version.

    Args:
        store: All schemas.
        each: Version to delete.
        permanent: Include soft-deleted schemas, which existing records may still need.
        except_subject: Ignore references from this subject, because all its versions are deleted.
    """
    found = store.referring(*each.subject_version, deleted=permanent)
    if any(other.subject != except_subject for other in found):
        key = f"{{magic=1,keytype=SCHEMA,subject={each.subject},version={each.version}}}"
        raise RegistryError(REFERENCE_EXISTS, f"One or more references exist to the schema {key}.")


# -- settings


def plan_config(
    store: SchemaStore, subject: str | None, body: Mapping[str, object]
) -> WritePlan[dict[str, object]]:
    """Plan a change of settings of a subject, or of the global settings for None.

    Args:
        store: The schema store.
        subject: The subject, or None.
        body: New values of the settings to change; unknown settings are ignored.

    Raises:
        RegistryError: A setting is invalid, or the mode is read-only.
    """
    if subject is not None:
        check_subject(subject)
    _check_may_write(store, subject)
    requested = dict(body)
    if "compatibility" in requested:
        requested[LEVEL] = requested.pop("compatibility")
    changes = {key: value for key, value in requested.items() if key in CONFIG_KEYS}
    if changes.get(LEVEL) is not None:
        changes[LEVEL] = level_of(changes[LEVEL])
    if not isinstance(changes.get(NORMALIZE), bool | None):
        raise RegistryError(INVALID_LEVEL, "normalize must be true or false")
    merged = {**(store.config(subject) or {}), **changes}
    value = {key: each for key, each in merged.items() if each is not None}
    response = {("compatibility" if key == LEVEL else key): each for key, each in changes.items()}
    return WritePlan([Entry(subject_key(CONFIG, subject), value)], response)


def level_of(text: object) -> Level:
    """Parse a compatibility level. Raises RegistryError."""
    try:
        return Level(str(text).upper())
    except ValueError:
        known = ", ".join(each.lower() for each in Level)
        raise RegistryError(
            INVALID_LEVEL, f"Invalid compatibility level. Valid values are {known}"
        ) from None


def plan_config_deletion(store: SchemaStore, subject: str | None) -> WritePlan[dict[str, object]]:
    """Plan the removal of a subject's settings, so that the global settings apply.

    Raises:
        RegistryError: The subject has no own settings, or the mode is read-only.
    """
    known = store.config(subject)
    if subject is not None and known is None:
        raise no_such_subject(subject)
    _check_may_write(store, subject)
    deletions = [*_deletion(store, CONFIG, subject)]
    return WritePlan(deletions, dict(known or {LEVEL: Level.BACKWARD}))


def no_own_level(subject: str) -> RegistryError:
    """Return the error for a subject without its own compatibility level."""
    return RegistryError(
        NO_OWN_LEVEL, f"Subject '{subject}' does not have subject-level compatibility configured"
    )


def plan_mode(
    store: SchemaStore, subject: str | None, mode: object, *, force: bool
) -> WritePlan[dict[str, str]]:
    """Plan a change of the mode of a subject, or of the global mode for None.

    Args:
        store: The schema store.
        subject: The subject, or None.
        mode: Name of the mode.
        force: Allow import mode for a subject that has schemas.

    Raises:
        RegistryError: The mode is invalid, or import mode is not permitted.
    """
    if subject is not None:
        check_subject(subject)
    try:
        requested = Mode(str(mode).upper())
    except ValueError:
        known = ", ".join(Mode)
        raise RegistryError(INVALID_MODE, f"Invalid mode. Valid values are {known}") from None
    deletions: list[Entry] = []
    if requested is Mode.IMPORT and store.mode(subject) is not Mode.IMPORT and not force:
        deletions = [*_delete_for_import(store, subject)]
    value = {"subject": subject, "mode": requested} if subject is not None else {"mode": requested}
    return WritePlan([*deletions, Entry(subject_key(MODE, subject), value)], {"mode": requested})


def _delete_for_import(store: SchemaStore, subject: str | None) -> Iterator[Entry]:
    """Yield permanent deletions of soft-deleted versions, so that schemas with any ID can be imported.

    Raises:
        RegistryError: A version is not soft-deleted, or is referenced.
    """
    names = store.subjects(deleted=True) if subject is None else [subject]
    versions = [each for name in names for each in store.versions(name, deleted=True)]
    if not all(each.is_deleted for each in versions):
        raise RegistryError(NOT_PERMITTED, "Cannot import since found existing subjects")
    for each in versions:
        _check_not_referenced(store, each, permanent=True)
    for each in versions:
        yield from _deletion(store, SCHEMA, *each.subject_version)
    if versions:
        yield noop(store.last_id)


def plan_mode_deletion(store: SchemaStore, subject: str | None) -> WritePlan[dict[str, Mode]]:
    """Plan the removal of a subject's mode. Raises RegistryError if the subject has no own mode."""
    known = store.own_mode(subject)
    if subject is not None and known is None:
        raise no_such_subject(subject)
    response = {"mode": known or Mode.READWRITE}
    return WritePlan([*_deletion(store, MODE, subject)], response)


def no_own_mode(subject: str) -> RegistryError:
    """Return the error for a subject without its own mode."""
    return RegistryError(
        NO_OWN_MODE, f"Subject '{subject}' does not have subject-level mode configured"
    )
