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
    """Records to write, and the answer once they are written."""

    entries: Sequence[Entry]
    answer: T


class CheckTask(NamedTuple):
    """A schema to check, with everything that the check depends on.

    Attributes:
        content: The schema to check.
        texts: Texts of its references by name.
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
    all_versions: bool = False,
) -> CheckTask:
    """Collect the versions that a schema must be compatible with.

    Args:
        store: The schema store.
        subject: Subject of the schema.
        content: The schema to check.
        normalize: Normalize the schema even if the subject's settings do not request it.
        with_version: Compare only with this version (-1 for the latest).
        all_versions: Compare with all versions regardless of the level.

    Raises:
        RegistryError: The schema is too large, or a reference or version does not exist.
    """
    check_size(content)
    level = store.level(subject)
    there = store.versions(subject)[::-1]
    if with_version is not None:
        there = _named_version(store, subject, with_version)
    elif not all_versions:
        there = [] if store.mode(subject) is Mode.IMPORT else there
        there = there if level.is_transitive else there[:1]
    if level is Level.NONE:
        there = []
    references = Budget(COMPARED_REFERENCES_MAX)
    return CheckTask(
        content,
        referred_texts(store, content),
        level,
        normalize or store.normalizes(subject),
        tuple((each, referred_texts(store, each.content, references)) for each in there),
    )


def _named_version(store: SchemaStore, subject: str, version: int) -> list[Registered]:
    """Return one version; the latest of a subject without versions is an empty list."""
    try:
        return [store.version(subject, version)]
    except RegistryError:
        if version == -1:
            return []
        raise no_such_version(version) from None


def check(compared: CheckTask) -> CheckResult:
    """Check that a schema is well-formed and compatible. Raises RegistryError if it is malformed."""
    parsed = parse(compared.content, compared.texts)
    content = stored(compared.content, parsed, normalize=compared.normalize)
    reasons: list[str] = []
    for old, texts in compared.earlier:
        found = [*differences(parsed, content.type, compared.level, old.content, texts)]
        if found:
            reasons = [*_messages(found, old, compared.level)]
            break
    return CheckResult(content, reasons)


def _messages(found: Sequence[Difference], old: Registered, level: Level) -> Iterator[str]:
    yield from map(str, found)
    yield f"{{oldSchemaVersion: {old.version}}}"
    yield f"{{compatibility: '{level}'}}"


# -- schemas


def find(store: SchemaStore, subject: str, content: Content, *, deleted: bool) -> Registered:
    """Return the version with exactly this schema. Raises RegistryError."""
    there = store.versions(subject, deleted=deleted)
    if not there:
        raise no_such_subject(subject)
    names_none = content.metadata is None and content.rule_set is None
    found = _find_latest(there, content, any_metadata=names_none)
    if found is None:
        raise no_such_schema()
    return found


def _find_latest(
    there: Sequence[Registered], content: Content, *, any_metadata: bool = False
) -> Registered | None:
    """Return the newest version with a schema, or None."""
    alike = [each for each in reversed(there) if _is_alike(each.content, content, any_metadata)]
    same = (each for each in alike if each.content.text == content.text)
    return next(same, None) or _find_equivalent(alike, content)


def _is_alike(known: Content, asked: Content, any_metadata: bool) -> bool:
    """Return True if everything except the text is equal."""
    if (known.type, known.references) != (asked.type, asked.references):
        return False
    theirs = asked.metadata, asked.rule_set
    return any_metadata or (known.metadata, known.rule_set) == theirs


def _find_equivalent(there: Sequence[Registered], content: Content) -> Registered | None:
    """Return the newest version whose text differs only in formatting, or None.

    Other registries on the same topic, such as Karapace, reorder JSON fields and add blank lines to
    Protobuf files. They do not change the length of a JSON text.
    """
    may_be = [
        each
        for each in there
        if content.type == PROTOBUF or len(each.content.text) == len(content.text)
    ]
    sizes = accumulate(len(each.content.text) for each in may_be)
    few = [
        each for each, size in zip(may_be, sizes, strict=True) if size <= EQUIVALENCE_CHARACTERS_MAX
    ]
    if (
        not few or len(content.text) > EQUIVALENCE_CHARACTERS_MAX
    ):  # the common case: nothing to parse
        return None
    wanted = _normalized_text(content)
    return next((each for each in few if _normalized_text(each.content) == wanted), None)


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
    """Plan the registration of a schema; no records if it is registered already.

    Args:
        store: The schema store.
        subject: Subject to register in.
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
    there = store.versions(subject, deleted=True)
    following = there[-1].version + 1 if there else 1
    if mode is not Mode.IMPORT and version > 0 and version != following:
        raise invalid_schema("Version is not one more than previous version")
    made = Registered(
        subject,
        version if version > 0 else following,
        _id_for(store, content, schema_id),
        content,
    )
    if max(made.id, made.version) > VERSION_MAX:
        raise invalid_schema("all schema IDs are used")
    replaced = _replaced(store, there, made)
    return WritePlan([*replaced, _entry_of(made)], made)


def _replaced(store: SchemaStore, there: Sequence[Registered], made: Registered) -> Iterator[Entry]:
    """Yield deletions of soft-deleted versions that the new version with the same ID replaces."""
    for each in there:
        is_earlier = each.is_deleted and each.id == made.id and each.version < made.version
        if is_earlier and not store.referring(*each.place, deleted=True):
            yield from _deletion(store, SCHEMA, *each.place)


def _deletion(
    store: SchemaStore, kind: str, subject: str | None, version: int = 0
) -> Iterator[Entry]:
    """Yield tombstones for a version or a setting, for each form of its key in the topic."""
    key = schema_key(subject, version) if kind == SCHEMA and subject else subject_key(kind, subject)
    own = Entry(key)
    yield own
    for each in store.keys(kind, subject, version):
        if each != own.key_bytes():
            yield tombstone(each)


def incompatible(subject: str, reasons: Sequence[str]) -> RegistryError:
    """Return the error for an incompatible schema."""
    return RegistryError(
        INCOMPATIBLE,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
        f"details: [{', '.join(reasons)}]",
    )


def _id_for(store: SchemaStore, content: Content, wanted: int) -> int:
    known = store.id_of(content)
    if wanted < 0:
        return store.last_id + 1 if known is None else known
    try:
        there = store.content_of_id(wanted)
    except RegistryError:
        return wanted
    if there != content:
        raise RegistryError(
            NOT_PERMITTED, f"Overwrite new schema with id {wanted} is not permitted."
        )
    return wanted


def _entry_of(each: Registered) -> Entry:
    value = {**each.document(), "deleted": each.is_deleted}
    return Entry(schema_key(*each.place), value)


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
    whose = f"Subject '{subject}' Version {found.version}"
    if found.is_deleted and not permanent:
        raise RegistryError(
            VERSION_SOFT_DELETED,
            f"{whose} was soft deleted. Set permanent=true to delete permanently",
        )
    _check_may_write(store, subject)
    _check_not_referred(store, found, permanent=permanent)
    if not permanent:
        return WritePlan([_entry_of(replace(found, is_deleted=True))], found.version)
    if not found.is_deleted:
        raise RegistryError(
            VERSION_NOT_SOFT_DELETED,
            f"{whose} was not deleted first before being permanently deleted",
        )
    gone = [*_deletion(store, SCHEMA, *found.place)]
    if len(store.versions(subject, deleted=True)) == 1:
        gone += _settings_deletion(store, subject)
    return WritePlan([*gone, noop(store.last_id)], found.version)


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
    there = store.existing_versions(subject, deleted=True)
    left = [each for each in there if not each.is_deleted]
    if not permanent and not left:
        raise RegistryError(
            SUBJECT_SOFT_DELETED,
            f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
        )
    _check_may_write(store, subject)
    for each in there if permanent else left:
        _check_not_referred(store, each, permanent=permanent, apart_from=subject)
        if permanent and not each.is_deleted:
            raise RegistryError(
                SUBJECT_NOT_SOFT_DELETED,
                f"Subject '{subject}' was not deleted first before being permanently deleted",
            )
    if permanent:
        # Versions of a subject only reference earlier versions, so delete them in reverse order.
        gone = [tomb for each in reversed(there) for tomb in _deletion(store, SCHEMA, *each.place)]
        settings = _settings_deletion(store, subject)
        return WritePlan([*gone, *settings, noop(store.last_id)], [each.version for each in there])
    # The highest version overall: this record replaces an earlier one with the same key.
    value = {"subject": subject, "version": there[-1].version}
    mark = Entry(subject_key(DELETE_SUBJECT, subject), value)
    return WritePlan([mark], [each.version for each in left])


def _check_not_referred(
    store: SchemaStore, each: Registered, *, permanent: bool, apart_from: str | None = None
) -> None:
    """Raise RegistryError if another schema refers to a version.

    Args:
        store: All schemas.
        each: Version that is deleted.
        permanent: Include soft-deleted schemas, which existing records may still need.
        apart_from: Ignore references from this subject, because all of it is deleted.
    """
    found = store.referring(*each.place, deleted=permanent)
    if any(other.subject != apart_from for other in found):
        key = f"{{magic=1,keytype=SCHEMA,subject={each.subject},version={each.version}}}"
        raise RegistryError(REFERENCE_EXISTS, f"One or more references exist to the schema {key}.")


# -- settings


def plan_config(
    store: SchemaStore, subject: str | None, asked: Mapping[str, object]
) -> WritePlan[dict[str, object]]:
    """Plan a change of the named settings of a subject, or of the global ones for None.

    Raises:
        RegistryError: A setting is invalid, or the mode is read-only.
    """
    if subject is not None:
        check_subject(subject)
    _check_may_write(store, subject)
    asked = dict(asked)
    if "compatibility" in asked:
        asked[LEVEL] = asked.pop("compatibility")
    named = {key: value for key, value in asked.items() if key in CONFIG_KEYS}
    if named.get(LEVEL) is not None:
        named[LEVEL] = level_of(named[LEVEL])
    if not isinstance(named.get(NORMALIZE), bool | None):
        raise RegistryError(INVALID_LEVEL, "normalize must be true or false")
    changed = {**(store.config(subject) or {}), **named}
    value = {key: each for key, each in changed.items() if each is not None}
    answer = {("compatibility" if key == LEVEL else key): each for key, each in named.items()}
    return WritePlan([Entry(subject_key(CONFIG, subject), value)], answer)


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
    """Plan the removal of a subject's settings, so that the global ones apply.

    Raises:
        RegistryError: The subject has no own settings, or the mode is read-only.
    """
    known = store.config(subject)
    if subject is not None and known is None:
        raise no_such_subject(subject)
    _check_may_write(store, subject)
    gone = [*_deletion(store, CONFIG, subject)]
    return WritePlan(gone, dict(known or {LEVEL: Level.BACKWARD}))


def no_own_level(subject: str) -> RegistryError:
    """Return the error for a subject without its own compatibility level."""
    return RegistryError(
        NO_OWN_LEVEL, f"Subject '{subject}' does not have subject-level compatibility configured"
    )


def plan_mode(
    store: SchemaStore, subject: str | None, mode: object, *, force: bool
) -> WritePlan[dict[str, str]]:
    """Plan a change of the mode of a subject, or of the global one for None.

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
        wanted = Mode(str(mode).upper())
    except ValueError:
        known = ", ".join(Mode)
        raise RegistryError(INVALID_MODE, f"Invalid mode. Valid values are {known}") from None
    gone: list[Entry] = []
    if wanted is Mode.IMPORT and store.mode(subject) is not Mode.IMPORT and not force:
        gone = [*_cleared(store, subject)]
    value = {"subject": subject, "mode": wanted} if subject is not None else {"mode": wanted}
    return WritePlan([*gone, Entry(subject_key(MODE, subject), value)], {"mode": wanted})


def _cleared(store: SchemaStore, subject: str | None) -> Iterator[Entry]:
    """Yield permanent deletions of soft-deleted versions, so that schemas with any ID can be imported.

    Raises:
        RegistryError: A version is not soft-deleted, or is referenced.
    """
    names = store.subjects(deleted=True) if subject is None else [subject]
    there = [each for name in names for each in store.versions(name, deleted=True)]
    if not all(each.is_deleted for each in there):
        raise RegistryError(NOT_PERMITTED, "Cannot import since found existing subjects")
    for each in there:
        _check_not_referred(store, each, permanent=True)
    for each in there:
        yield from _deletion(store, SCHEMA, *each.place)
    if there:
        yield noop(store.last_id)


def plan_mode_deletion(store: SchemaStore, subject: str | None) -> WritePlan[dict[str, Mode]]:
    """Plan the removal of a subject's mode. Raises RegistryError if it has none."""
    known = store.own_mode(subject)
    if subject is not None and known is None:
        raise no_such_subject(subject)
    answer = {"mode": known or Mode.READWRITE}
    return WritePlan([*_deletion(store, MODE, subject)], answer)


def no_own_mode(subject: str) -> RegistryError:
    """Return the error for a subject without its own mode."""
    return RegistryError(
        NO_OWN_MODE, f"Subject '{subject}' does not have subject-level mode configured"
    )
