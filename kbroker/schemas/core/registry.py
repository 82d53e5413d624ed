"""What becomes of a request that changes something: the records that are to be written, and the answer."""

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
SUBJECT_MAX = 1024
"""Characters of a subject's name."""
RESERVED_SUBJECTS = frozenset({"__GLOBAL", "__EMPTY"})
"""Names that Confluent's registry uses itself."""
SAME_MAX = 200_000
"""Characters of schemas that are read to see whether they are only written down in another way."""
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


class Planned(NamedTuple, Generic[T]):
    """What is to be written, and what is answered when it is."""

    entries: Sequence[Entry]
    answer: T


class Compared(NamedTuple):
    """A schema that is to be checked, and what it is compared with: all that a check looks at.

    `earlier` are the versions with what they refer to, the newest one first.
    """

    content: Content
    texts: Texts
    level: Level
    normalize: bool
    earlier: tuple[tuple[Registered, Texts], ...]


class Checked(NamedTuple):
    """What came of a check: the schema as it is stored, and why it cannot be."""

    content: Content
    reasons: Sequence[str]


def check_subject(subject: str) -> None:
    """Raises RegistryError for what is no name of a subject."""
    is_text = not any(category(each) == "Cc" for each in subject)
    if not 0 < len(subject) <= SUBJECT_MAX or subject in RESERVED_SUBJECTS or not is_text:
        raise RegistryError(
            INVALID_SUBJECT, f"The specified subject '{subject[:100]}' is not a valid."
        )


def version_of(text: str) -> int:
    """-1 for the latest one. Raises RegistryError."""
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


# -- checks, which may take long


def to_compare(
    store: SchemaStore,
    subject: str,
    content: Content,
    *,
    normalize: bool = False,
    with_version: int | None = None,
    all_versions: bool = False,
) -> Compared:
    """What a schema has to go with: the versions that the level asks for, or those that are named.

    Raises RegistryError.
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
    return Compared(
        content,
        referred_texts(store, content),
        level,
        normalize or store.normalizes(subject),
        tuple((each, referred_texts(store, each.content, references)) for each in there),
    )


def _named_version(store: SchemaStore, subject: str, version: int) -> list[Registered]:
    """Return one version; of a subject without versions the latest is none. Raises RegistryError."""
    try:
        return [store.version(subject, version)]
    except RegistryError:
        if version == -1:
            return []
        raise no_such_version(version) from None


def check(compared: Compared) -> Checked:
    """Look whether a schema is well-formed and goes with those before it. Raises RegistryError."""
    parsed = parse(compared.content, compared.texts)
    content = stored(compared.content, parsed, normalize=compared.normalize)
    reasons: list[str] = []
    for old, texts in compared.earlier:
        found = [*differences(parsed, content.type, compared.level, old.content, texts)]
        if found:
            reasons = [*_told(found, old, compared.level)]
            break
    return Checked(content, reasons)


def _told(found: Sequence[Difference], old: Registered, level: Level) -> Iterator[str]:
    yield from map(str, found)
    yield f"{{oldSchemaVersion: {old.version}}}"
    yield f"{{compatibility: '{level}'}}"


# -- schemas


def find(store: SchemaStore, subject: str, content: Content, *, deleted: bool) -> Registered:
    """The version that has exactly this schema. Raises RegistryError."""
    there = store.versions(subject, deleted=deleted)
    if not there:
        raise no_such_subject(subject)
    names_none = content.metadata is None and content.rule_set is None
    found = _newest_with(there, content, any_metadata=names_none)
    if found is None:
        raise no_such_schema()
    return found


def _newest_with(
    there: Sequence[Registered], content: Content, *, any_metadata: bool = False
) -> Registered | None:
    """The newest of some versions that has a schema, if there is one."""
    alike = [each for each in reversed(there) if _is_alike(each.content, content, any_metadata)]
    same = (each for each in alike if each.content.text == content.text)
    return next(same, None) or _written_otherwise(alike, content)


def _is_alike(known: Content, asked: Content, any_metadata: bool) -> bool:
    """Whether all but the text is the same."""
    if (known.type, known.references) != (asked.type, asked.references):
        return False
    theirs = asked.metadata, asked.rule_set
    return any_metadata or (known.metadata, known.rule_set) == theirs


def _written_otherwise(there: Sequence[Registered], content: Content) -> Registered | None:
    """The first one that only writes a schema down in another way.

    Another registry on the topic, as Karapace, orders the fields of JSON, and sets lines of Protobuf
    apart, in a way of its own. What it does not do is to make a text of JSON longer or shorter.
    """
    may_be = [
        each
        for each in there
        if content.type == PROTOBUF or len(each.content.text) == len(content.text)
    ]
    sizes = accumulate(len(each.content.text) for each in may_be)
    few = [each for each, size in zip(may_be, sizes, strict=True) if size <= SAME_MAX]
    if not few or len(content.text) > SAME_MAX:  # as mostly: then nothing is read
        return None
    wanted = _without_style(content)
    return next((each for each in few if _without_style(each.content) == wanted), None)


def _without_style(content: Content) -> str:
    """The text, without what another way to write it down has otherwise."""
    if content.type == PROTOBUF:
        return "\n".join(line for line in content.text.splitlines() if line.strip())
    try:
        return json.dumps(json.loads(content.text), sort_keys=True)
    except (ValueError, RecursionError):  # another registry wrote what is not JSON here
        return content.text


def plan_registration(
    store: SchemaStore, subject: str, checked: Checked, *, schema_id: int = -1, version: int = -1
) -> Planned[Registered]:
    """Register a schema, which may be there already. Raises RegistryError."""
    check_subject(subject)
    content, mode = checked.content, store.mode(subject)
    known = _newest_with(store.versions(subject), content)
    if known is not None and schema_id in (-1, known.id) and version in (-1, 0, known.version):
        return Planned((), known)
    _check_may_write(store, subject)
    if schema_id >= 0 and mode is not Mode.IMPORT:
        raise RegistryError(NOT_PERMITTED, f"Subject {subject} is not in import mode")
    if mode is Mode.IMPORT and schema_id < 0:
        raise RegistryError(NOT_PERMITTED, f"Subject {subject} is in import mode: name an id")
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
        raise invalid_schema("there are no more ids")
    replaced = _replaced(store, there, made)
    return Planned([*replaced, _entry_of(made)], made)


def _replaced(store: SchemaStore, there: Sequence[Registered], made: Registered) -> Iterator[Entry]:
    """Delete the soft-deleted versions that a new version with the same ID takes the place of."""
    for each in there:
        is_earlier = each.is_deleted and each.id == made.id and each.version < made.version
        if is_earlier and not store.referring(*each.place, deleted=True):
            yield from _deletion(store, SCHEMA, *each.place)


def _deletion(
    store: SchemaStore, kind: str, subject: str | None, version: int = 0
) -> Iterator[Entry]:
    """Delete a version or a setting under each form of its key that the topic holds."""
    key = schema_key(subject, version) if kind == SCHEMA and subject else subject_key(kind, subject)
    own = Entry(key)
    yield own
    for each in store.keys(kind, subject, version):
        if each != own.key_bytes():
            yield tombstone(each)


def incompatible(subject: str, reasons: Sequence[str]) -> RegistryError:
    """A schema does not go with one before it."""
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
) -> Planned[int]:
    """Delete one version; for good only what is deleted already. Raises RegistryError."""
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
        return Planned([_entry_of(replace(found, is_deleted=True))], found.version)
    if not found.is_deleted:
        raise RegistryError(
            VERSION_NOT_SOFT_DELETED,
            f"{whose} was not deleted first before being permanently deleted",
        )
    gone = [*_deletion(store, SCHEMA, *found.place)]
    if len(store.versions(subject, deleted=True)) == 1:
        gone += _settings_deletion(store, subject)
    return Planned([*gone, noop(store.last_id)], found.version)


def _settings_deletion(store: SchemaStore, subject: str) -> Iterator[Entry]:
    """Delete the settings of a subject that has no version left."""
    for kind, known in ((CONFIG, store.config(subject)), (MODE, store.own_mode(subject))):
        if known is not None:
            yield from _deletion(store, kind, subject)


def plan_subject_deletion(
    store: SchemaStore, subject: str, *, permanent: bool
) -> Planned[list[int]]:
    """Delete all versions of a subject; for good also its settings. Raises RegistryError."""
    there = store.some_versions(subject, deleted=True)
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
        # References among versions of one subject lead to earlier ones.
        gone = [tomb for each in reversed(there) for tomb in _deletion(store, SCHEMA, *each.place)]
        settings = _settings_deletion(store, subject)
        return Planned([*gone, *settings, noop(store.last_id)], [each.version for each in there])
    # The highest version of all: this record takes the place of an earlier one of the same key.
    value = {"subject": subject, "version": there[-1].version}
    mark = Entry(subject_key(DELETE_SUBJECT, subject), value)
    return Planned([mark], [each.version for each in left])


def _check_not_referred(
    store: SchemaStore, each: Registered, *, permanent: bool, apart_from: str | None = None
) -> None:
    """Raise RegistryError if another schema refers to a version.

    Args:
        permanent: Whether soft-deleted schemas count; records may still need them.
        apart_from: A subject whose own references do not count, because all of it is deleted.
    """
    found = store.referring(*each.place, deleted=permanent)
    if any(other.subject != apart_from for other in found):
        key = f"{{magic=1,keytype=SCHEMA,subject={each.subject},version={each.version}}}"
        raise RegistryError(REFERENCE_EXISTS, f"One or more references exist to the schema {key}.")


# -- settings


def plan_config(
    store: SchemaStore, subject: str | None, asked: Mapping[str, object]
) -> Planned[dict[str, object]]:
    """Change what is named of a subject's settings, or of those of all. Raises RegistryError."""
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
        raise RegistryError(INVALID_LEVEL, "normalize is true or false")
    changed = {**(store.config(subject) or {}), **named}
    value = {key: each for key, each in changed.items() if each is not None}
    answer = {("compatibility" if key == LEVEL else key): each for key, each in named.items()}
    return Planned([Entry(subject_key(CONFIG, subject), value)], answer)


def level_of(text: object) -> Level:
    """Raises RegistryError."""
    try:
        return Level(str(text).upper())
    except ValueError:
        known = ", ".join(each.lower() for each in Level)
        raise RegistryError(
            INVALID_LEVEL, f"Invalid compatibility level. Valid values are {known}"
        ) from None


def plan_config_deletion(store: SchemaStore, subject: str | None) -> Planned[dict[str, object]]:
    """Forget a subject's settings, so that those of all hold for it. Raises RegistryError."""
    known = store.config(subject)
    if subject is not None and known is None:
        raise no_such_subject(subject)
    _check_may_write(store, subject)
    gone = [*_deletion(store, CONFIG, subject)]
    return Planned(gone, dict(known or {LEVEL: Level.BACKWARD}))


def no_own_level(subject: str) -> RegistryError:
    """What holds for all holds for it."""
    return RegistryError(
        NO_OWN_LEVEL, f"Subject '{subject}' does not have subject-level compatibility configured"
    )


def plan_mode(
    store: SchemaStore, subject: str | None, mode: object, *, force: bool
) -> Planned[dict[str, str]]:
    """Change what may be done. Schemas with ids of their own go to empty subjects only, unless `force`.

    Raises RegistryError.
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
    return Planned([*gone, Entry(subject_key(MODE, subject), value)], {"mode": wanted})


def _cleared(store: SchemaStore, subject: str | None) -> Iterator[Entry]:
    """Delete for good what is soft-deleted, so that schemas with any ID can be imported.

    Raises RegistryError if a version is left, or is referred to.
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


def plan_mode_deletion(store: SchemaStore, subject: str | None) -> Planned[dict[str, Mode]]:
    """Forget the mode of a subject. Raises RegistryError."""
    known = store.own_mode(subject)
    if subject is not None and known is None:
        raise no_such_subject(subject)
    told = {"mode": known or Mode.READWRITE}
    return Planned([*_deletion(store, MODE, subject)], told)


def no_own_mode(subject: str) -> RegistryError:
    """What holds for all holds for it."""
    return RegistryError(
        NO_OWN_MODE, f"Subject '{subject}' does not have subject-level mode configured"
    )
