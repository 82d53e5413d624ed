"""Random histories of a registry, with writes of other registries and compaction in between.

The store that is read from the compacted topic must agree with a plain model.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from kbroker.schemas.core import registry
from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.records import Entry, noop, read_entry, tombstone
from kbroker.schemas.core.registry import CheckResult, WritePlan
from kbroker.schemas.core.store import SchemaStore
from kbroker.schemas.core.values import AVRO, Content

HISTORIES, STEPS = 60, 60
SUBJECTS = ("a-value", "b-value", "c-value")
TEXTS = ('"int"', '"long"', '"string"', '"bytes"')
LEVELS = ("BACKWARD", "FULL", "NONE")

Key = Mapping[str, Any]


def confluent_old(key: Key) -> bytes:
    """Encode a key as Confluent's registry did before it used magic byte 1."""
    return _compact({**key, "magic": 0})


def confluent_new(key: Key) -> bytes:
    return _compact(key)


def karapace(key: Key) -> bytes:
    """Encode a key in Karapace's field order, with white space and an unknown field."""
    return json.dumps({**dict([*key.items()][::-1]), "origin": "karapace"}).encode()


def _compact(key: Key) -> bytes:
    return json.dumps(key, separators=(",", ":")).encode()


FORMS: tuple[Callable[[Key], bytes], ...] = (confluent_old, confluent_new, karapace)


def schema_key(subject: str, version: int) -> Key:
    return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}


def setting_key(kind: str, subject: str | None) -> Key:
    return {"keytype": kind, "subject": subject, "magic": 0}


class Version(NamedTuple):
    id: int
    text: str
    is_deleted: bool


@dataclass
class Model:
    """The expected state of a registry, in dictionaries."""

    versions: dict[str, dict[int, Version]] = field(default_factory=dict)
    levels: dict[str | None, str] = field(default_factory=dict)
    modes: dict[str | None, str] = field(default_factory=dict)

    def live_versions(self, subject: str) -> list[int]:
        versions = self.versions.get(subject, {})
        return sorted(each for each, version_ in versions.items() if not version_.is_deleted)

    def next_version(self, subject: str) -> int:
        return max(self.versions.get(subject, {}), default=0) + 1

    def put(self, subject: str, version: int, version_: Version) -> None:
        self.versions.setdefault(subject, {})[version] = version_

    def soft_delete(self, subject: str, versions: list[int]) -> None:
        for each in versions:
            self.put(subject, each, self.versions[subject][each]._replace(is_deleted=True))

    def hard_delete(self, subject: str, versions: list[int]) -> None:
        for each in versions:
            del self.versions[subject][each]
        if not self.versions[subject]:
            del self.versions[subject]

    def forget_settings(self, subject: str) -> None:
        if subject not in self.versions:
            self.levels.pop(subject, None)
            self.modes.pop(subject, None)

    def ids(self) -> dict[int, str]:
        return {each.id: each.text for some in self.versions.values() for each in some.values()}


class Topic:
    """The records of `_schemas` as a log that can be compacted, and the store that reads it."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None, bytes | None]] = []
        self.store = SchemaStore()

    def write(self, key: bytes, value: Mapping[str, Any] | None, last: int | None = None) -> None:
        data = None if value is None else json.dumps(value).encode()
        header = None if last is None else b"%d" % last
        self.records.append((key, data, header))
        self.store.replay(read_entry(*self.records[-1]))

    def plan(self, planned: WritePlan[Any]) -> Any:
        """Write the entries of a plan as `SchemaTopic` does."""
        if planned.entries:
            for each in (*self.store.repairs(), *planned.entries):
                self.write(each.key_bytes(), each.value, each.last_id)
        return planned.response

    def compact(self, *, tombstones: bool) -> None:
        """Keep the last record of each key. With `tombstones`, delete tombstones too."""
        last = {key: at for at, (key, _, _) in enumerate(self.records)}
        kept = [row for at, row in enumerate(self.records) if last[row[0]] == at]
        is_noop = ["NOOP" in row[0].decode() for row in kept]
        self.records = [
            row
            for row, keep in zip(kept, is_noop, strict=True)
            if keep or row[1] is not None or not tombstones
        ]

    def restart(self) -> None:
        self.store = SchemaStore()
        for each in self.records:
            self.store.replay(read_entry(*each))


class History:
    """Random operations on a topic and on its model."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.topic = Topic()
        self.model = Model()
        self.last_id = 0
        self.steps: list[str] = []

    def run(self, steps: int) -> None:
        operations: list[Callable[[], str]] = [
            *[self.register] * 4,
            self.soft_delete_version,
            self.hard_delete_version,
            self.soft_delete_subject,
            self.hard_delete_subject,
            self.set_level,
            self.delete_level,
            self.set_mode,
            self.delete_mode,
            *[self.foreign_register] * 3,
            self.foreign_delete_version,
            self.foreign_delete_subject,
            self.foreign_setting,
            *[self.compact_and_restart] * 2,
        ]
        for _ in range(steps):
            self.steps.append(self.random.choice(operations)())
            self.check()
        self.steps.append(self.compact_and_restart())
        self.check()

    # -- this registry

    def error_of_plan(self, plan: Callable[[], WritePlan[Any]]) -> int:
        """Carry out a plan and return the error code, or 0."""
        try:
            self.topic.plan(plan())
        except RegistryError as error:
            return error.code
        return 0

    def is_read_only(self, subject: str) -> bool:
        return self.model.modes.get(subject) == "READONLY"

    def register(self) -> str:
        subject, text = self.random.choice(SUBJECTS), self.random.choice(TEXTS)
        known = [
            v
            for v in self.model.live_versions(subject)
            if self.model.versions[subject][v].text == text
        ]
        code = self.error_of_plan(
            lambda: registry.plan_registration(
                self.topic.store, subject, CheckResult(Content(AVRO, text), ())
            )
        )
        assert code == (42205 if self.is_read_only(subject) and not known else 0)
        if not known and not code:
            ids = sorted(i for i, each in self.model.ids().items() if each == text)
            self.last_id = self.last_id if ids else self.last_id + 1
            schema_id = ids[0] if ids else self.last_id
            versions = self.model.versions.get(subject, {})
            version = self.model.next_version(subject)
            replaced = [
                v for v, each in versions.items() if each.is_deleted and each.id == schema_id
            ]
            self.model.put(subject, version, Version(schema_id, text, False))
            self.model.hard_delete(subject, replaced)
        return f"register {text} in {subject}"

    def any_version(self, subject: str) -> int:
        return self.random.randint(1, self.model.next_version(subject))

    def soft_delete_version(self) -> str:
        subject = self.random.choice(SUBJECTS)
        version = self.any_version(subject)
        code = self.error_of_plan(
            lambda: registry.plan_version_deletion(
                self.topic.store, subject, version, permanent=False
            )
        )
        versions = self.model.versions.get(subject)
        if versions is None:
            assert code == 40401
        elif version not in versions:
            assert code == 40402
        elif versions[version].is_deleted:
            assert code == 40406
        elif self.is_read_only(subject):
            assert code == 42205
        else:
            assert code == 0
            self.model.soft_delete(subject, [version])
        return f"delete {subject} {version}"

    def hard_delete_version(self) -> str:
        subject = self.random.choice(SUBJECTS)
        version = self.any_version(subject)
        code = self.error_of_plan(
            lambda: registry.plan_version_deletion(
                self.topic.store, subject, version, permanent=True
            )
        )
        versions = self.model.versions.get(subject)
        if versions is None:
            assert code == 40401
        elif version not in versions:
            assert code == 40402
        elif self.is_read_only(subject):
            assert code == 42205
        elif not versions[version].is_deleted:
            assert code == 40407
        else:
            assert code == 0
            self.model.hard_delete(subject, [version])
            self.model.forget_settings(subject)
        return f"delete {subject} {version} for good"

    def soft_delete_subject(self) -> str:
        subject = self.random.choice(SUBJECTS)
        code = self.error_of_plan(
            lambda: registry.plan_subject_deletion(self.topic.store, subject, permanent=False)
        )
        if subject not in self.model.versions:
            assert code == 40401
        elif not self.model.live_versions(subject):
            assert code == 40404
        elif self.is_read_only(subject):
            assert code == 42205
        else:
            assert code == 0
            self.model.soft_delete(subject, self.model.live_versions(subject))
        return f"delete {subject}"

    def hard_delete_subject(self) -> str:
        subject = self.random.choice(SUBJECTS)
        code = self.error_of_plan(
            lambda: registry.plan_subject_deletion(self.topic.store, subject, permanent=True)
        )
        if subject not in self.model.versions:
            assert code == 40401
        elif self.is_read_only(subject):
            assert code == 42205
        elif self.model.live_versions(subject):
            assert code == 40405
        else:
            assert code == 0
            self.model.hard_delete(subject, [*self.model.versions[subject]])
            self.model.forget_settings(subject)
        return f"delete {subject} for good"

    def some_subject(self) -> str | None:
        return self.random.choice((*SUBJECTS, None))

    def set_level(self) -> str:
        subject, level = self.some_subject(), self.random.choice(LEVELS)
        code = self.error_of_plan(
            lambda: registry.plan_config(self.topic.store, subject, {"compatibility": level})
        )
        assert code == (42205 if self.model.modes.get(subject) == "READONLY" else 0)
        if not code:
            self.model.levels[subject] = level
        return f"level of {subject} {level}"

    def delete_level(self) -> str:
        subject = self.some_subject()
        code = self.error_of_plan(lambda: registry.plan_config_deletion(self.topic.store, subject))
        if subject is not None and subject not in self.model.levels:
            assert code == 40401
        elif self.model.modes.get(subject) == "READONLY":
            assert code == 42205
        else:
            assert code == 0
            self.model.levels.pop(subject, None)
        return f"no level of {subject}"

    def set_mode(self) -> str:
        subject, mode = self.random.choice(SUBJECTS), self.random.choice(("READONLY", "READWRITE"))
        assert not self.error_of_plan(
            lambda: registry.plan_mode(self.topic.store, subject, mode, force=False)
        )
        self.model.modes[subject] = mode
        return f"mode of {subject} {mode}"

    def delete_mode(self) -> str:
        subject = self.random.choice(SUBJECTS)
        code = self.error_of_plan(lambda: registry.plan_mode_deletion(self.topic.store, subject))
        assert code == (0 if subject in self.model.modes else 40401)
        self.model.modes.pop(subject, None)
        return f"no mode of {subject}"

    # -- another registry on the topic

    def random_key_form(self) -> Callable[[Key], bytes]:
        return self.random.choice(FORMS)

    def foreign_register(self) -> str:
        subject, text = self.random.choice(SUBJECTS), self.random.choice(TEXTS)
        ids = sorted(i for i, each in self.model.ids().items() if each == text)
        schema_id = ids[0] if ids else self.last_id + 1
        self.last_id = max(self.last_id, schema_id)
        version, form = self.model.next_version(subject), self.random_key_form()
        self.foreign_version(form, subject, version, Version(schema_id, text, False))
        return f"{form.__name__} registers {text} in {subject}"

    def foreign_version(
        self, form: Callable[[Key], bytes], subject: str, version: int, version_: Version
    ) -> None:
        value = {
            "subject": subject,
            "version": version,
            "id": version_.id,
            "schema": version_.text,
            "deleted": version_.is_deleted,
        }
        self.topic.write(form(schema_key(subject, version)), value)
        self.model.put(subject, version, version_)

    def foreign_delete_version(self) -> str:
        """Delete with a random key form, independent of the registry that wrote the version."""
        subject, form = self.random.choice(SUBJECTS), self.random_key_form()
        versions = self.model.versions.get(subject)
        if not versions:
            return "nothing"
        version = self.random.choice([*versions])
        if versions[version].is_deleted:
            self.topic.write(form(schema_key(subject, version)), None)
            self.model.hard_delete(subject, [version])
        else:
            version_ = versions[version]._replace(is_deleted=True)
            self.foreign_version(form, subject, version, version_)
        return f"{form.__name__} deletes {subject} {version}"

    def foreign_delete_subject(self) -> str:
        subject, form = self.random.choice(SUBJECTS), self.random_key_form()
        if not self.model.live_versions(subject):
            return "nothing"
        highest = max(self.model.versions[subject])
        value = {"subject": subject, "version": highest}
        self.topic.write(form(setting_key("DELETE_SUBJECT", subject)), value)
        self.model.soft_delete(subject, self.model.live_versions(subject))
        return f"{form.__name__} deletes {subject}"

    def foreign_setting(self) -> str:
        subject, form = self.some_subject(), self.random_key_form()
        level = self.random.choice((*LEVELS, None))
        value = None if level is None else {"compatibilityLevel": level}
        self.topic.write(form(setting_key("CONFIG", subject)), value)
        if level is None:
            self.model.levels.pop(subject, None)
        else:
            self.model.levels[subject] = level
        return f"{form.__name__} sets level of {subject} {level}"

    # -- the topic

    def compact_and_restart(self) -> str:
        # the next change writes them
        if self.topic.store.repairs():
            self.topic.plan(WritePlan([noop(self.topic.store.last_id)], None))
        tombstones = self.random.random() < 0.7
        self.topic.compact(tombstones=tombstones)
        self.topic.restart()
        return f"compact, tombstones={tombstones}"

    def check(self) -> None:
        """Compare the whole state of the registry with the model."""
        store = self.topic.store
        found = {
            subject: {
                each.version: Version(each.id, each.content.text, each.is_deleted)
                for each in store.versions(subject, deleted=True)
            }
            for subject in store.subjects(deleted=True)
        }
        assert found == self.model.versions, self.steps
        levels = {s: (store.config(s) or {}).get("compatibilityLevel") for s in (*SUBJECTS, None)}
        assert {s: each for s, each in levels.items() if each} == self.model.levels, self.steps
        modes = {s: store.own_mode(s) for s in SUBJECTS}
        assert {s: each for s, each in modes.items() if each} == self.model.modes, self.steps
        ids = self.model.ids()
        for each in range(1, self.last_id + 1):
            try:
                assert store.content_of_id(each).text == ids.get(each), self.steps
            except RegistryError:
                assert each not in ids, self.steps
        for text in TEXTS:
            known = [each for each, other in ids.items() if other == text]
            assert store.id_of(Content(AVRO, text)) == min(known, default=None), self.steps


def test_registry_histories_with_compaction_agree_with_model(pytestconfig: pytest.Config) -> None:
    seed = pytestconfig.getoption("--seed")
    for number in range(HISTORIES):
        History(seed + number).run(STEPS)


@pytest.mark.parametrize("form", FORMS)
def test_permanently_deleted_version_stays_deleted_for_every_key_form(
    form: Callable[[Key], bytes],
) -> None:
    topic = Topic()
    value = {"subject": "s", "version": 1, "id": 1, "schema": '"int"'}
    topic.write(form(schema_key("s", 1)), value)
    topic.write(form(setting_key("CONFIG", "s")), {"compatibilityLevel": "FULL"})
    topic.plan(registry.plan_subject_deletion(topic.store, "s", permanent=False))
    assert topic.store.level("s") == "FULL"
    topic.plan(registry.plan_subject_deletion(topic.store, "s", permanent=True))
    topic.compact(tombstones=True)
    topic.restart()
    assert topic.store.subjects(deleted=True) == []
    assert topic.store.config("s") is None
    assert topic.store.last_id == 1
    with pytest.raises(RegistryError):
        topic.store.content_of_id(1)


def test_id_of_version_deleted_by_another_registry_is_not_reused() -> None:
    topic = Topic()
    topic.write(karapace(schema_key("s", 1)), {"subject": "s", "id": 7, "schema": '"int"'})
    topic.write(karapace(schema_key("s", 1)), None)
    topic.plan(WritePlan([tombstone(_compact(setting_key("CONFIG", "s")))], None))
    topic.compact(tombstones=True)
    topic.restart()
    assert topic.store.last_id == 7


def test_highest_id_survives_noop_of_another_registry() -> None:
    topic = Topic()
    topic.plan(WritePlan([noop(7)], None))
    topic.write(_compact({"keytype": "NOOP", "magic": 0}), None)
    topic.compact(tombstones=False)
    topic.restart()
    assert topic.store.last_id == 7


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ({**schema_key("s", 1), "subject": None}, {"id": 1, "schema": '"int"'}),
        ({**schema_key("s", 1), "version": "1"}, {"id": 1, "schema": '"int"'}),
        (schema_key("s", 1), {"id": 2**40, "schema": '"int"'}),
        (schema_key("s", 1), {"id": True, "schema": '"int"'}),
        (setting_key("CONFIG", "s"), {"compatibilityLevel": "SOME"}),
    ],
)
def test_malformed_record_of_another_writer_is_rejected(key: Key, value: dict[str, Any]) -> None:
    store = SchemaStore()
    with pytest.raises((ValueError, TypeError)):
        store.replay(Entry(key, value))
    assert store.subjects(deleted=True) == []
    assert store.level("s") == "BACKWARD"
