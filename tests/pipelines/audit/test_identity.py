"""Fields that identify a record in an audit."""

from __future__ import annotations

import pytest

from kbroker.pipelines.audit.identity import BadIdentity, Identity
from kbroker.pipelines.audit.rows import Rows
from kbroker.protocol.records import Record

ROWS = Rows.of(
    [
        Record(b"a", b'{"id": 1, "x": 1}', 10, [("id", b"7"), ("id", b"8")], 0),
        Record(b"a", b'{"x": 2, "id": 1}', 10, [("id", b"7")], 1),
        Record(b"b", b'{"id": "1"}', 11, [("other", b"7")], 2),
        Record(b"b", b"no JSON", 11, [], 3),
        Record(None, None, 12, [("id", None)], 4),
        Record(b"a", b'{"id": 1, "x": 1}', 99, [("id", b"7"), ("id", b"8")], 5),
    ]
)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("record", [[0, 5], [1], [2], [3], [4]]),
        ("key", [[0, 1, 5], [2, 3], [4]]),
        ("header:id", [[0, 1, 5], [2, 3, 4]]),
        ("field:id", [[0, 1, 5], [2], [3, 4]]),
    ],
)
def test_identity_groups_records_by_key_header_or_field(text: str, same: list[list[int]]) -> None:
    identity = Identity.parse(text)
    assert str(identity) == text
    groups: dict[int, list[int]] = {}
    for number, one in enumerate(identity.hashes(ROWS)):
        groups.setdefault(one, []).append(number)
    assert list(groups.values()) == same


def test_timestamp_is_part_of_identity_on_request() -> None:
    found = Identity(with_time=True).hashes(ROWS)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("text", ["", "offset", "key:x", "header", "header:", "field:", "field"])
def test_invalid_identities_are_rejected(text: str) -> None:
    with pytest.raises(BadIdentity, match="record, key, header:NAME, field:NAME"):
        Identity.parse(text)
