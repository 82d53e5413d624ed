"""Names and values of a cluster's keys in etcd."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from kbroker.cluster.etcd_keys import EtcdKeys, Held
from kbroker.storage.errors import StorageError


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def pair(key: bytes, value: bytes) -> dict[str, str]:
    numbers = {"mod_revision": "7", "create_revision": "5", "version": "2"}
    return {"key": base64(key), "value": base64(value), **numbers}


def test_encoded_key_begins_with_prefix_and_decodes_to_key() -> None:
    keys = EtcdKeys("/kbroker/")
    name = keys.encode("entry/topics/ö")
    assert b64decode(name) == "/kbroker/entry/topics/ö".encode()
    assert keys.decode(name) == "entry/topics/ö"


@pytest.mark.parametrize(
    ("prefix", "end"),
    [("/a", b"/b"), ("", b"\0")],
)
def test_range_ends_after_all_keys_with_prefix(prefix: str, end: bytes) -> None:
    expected = {"key": base64(prefix.encode()), "range_end": base64(end)}
    assert EtcdKeys(prefix).range_of("") == expected


def test_pair_of_etcd_decodes_to_key_with_revisions() -> None:
    held = EtcdKeys("/k/").held_in(pair(b"/k/cause", b'{"cause":"first use"}'))
    assert held == Held("cause", {"cause": "first use"}, 7, 5, 2)


def test_foreign_value_raises_error_that_names_key() -> None:
    with pytest.raises(StorageError, match=r"/k/cause in etcd was not written by kbroker"):
        EtcdKeys("/k/").held_in(pair(b"/k/cause", b"not JSON"))


@pytest.mark.parametrize(
    ("other", "is_older"),
    [((6, 5, 1), True), ((8, 5, 1), True), ((8, 8, 1), False), ((7, 5, 2), False)],
)
def test_key_is_older_if_revision_or_version_is_lower(
    other: tuple[int, int, int], is_older: bool
) -> None:
    known = Held("cause", {}, 7, 5, 2)
    assert Held("cause", {}, *other).is_older_than(known) is is_older
