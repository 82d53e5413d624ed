"""Replay of the topic into the store."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from kbroker.schemas.core.records import read_entry
from kbroker.schemas.core.store import SchemaStore

KINDS = ("SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "CLEAR_SUBJECT", "NOOP", "OTHER")
VALID = {
    "subject": "s",
    "version": 1,
    "id": 1,
    "schema": '"int"',
    "compatibilityLevel": "FULL",
    "mode": "READONLY",
    "references": [{"name": "n", "subject": "s", "version": 1}],
}
# JSON of unexpected values; Python reads 1e999 as infinity.
UNEXPECTED = (
    "null",
    "1e999",
    "-1e999",
    "NaN",
    "-1",
    "1.5",
    '""',
    '"x"',
    "[]",
    "[[]]",
    "{}",
    "true",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["key", "value"])
def test_malformed_record_is_rejected_by_an_error_that_the_reader_skips(
    kind: str, part: str
) -> None:
    """Any client with WRITE on the topic can write such a record; other errors would end the node."""
    for name in VALID:
        for text in UNEXPECTED:
            store = SchemaStore()
            _replay(store, "SCHEMA", VALID, VALID)
            odd = {**VALID, name: json.loads(text)}
            with suppress(ValueError, KeyError, TypeError):
                _replay(store, kind, odd if part == "key" else VALID, odd)
            assert store.repairs() is not None
            documents = [each.document() for each in store.versions("s", deleted=True)]
            assert json.dumps(documents)
            assert store.level("s")
            assert store.mode("s")


def _replay(store: SchemaStore, kind: str, key: object, value: object) -> None:
    assert isinstance(key, dict)
    found = {"keytype": kind, **{name: key[name] for name in ("subject", "version")}}
    store.replay(read_entry(json.dumps(found).encode(), json.dumps(value).encode()))
