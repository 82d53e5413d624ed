"""Human-readable form of coordinator records."""

from __future__ import annotations

import pytest

from kbroker.coordinator_runtime.log_records import coordinator_record

from ..protocol import test_share_group_metadata as share_groups
from ..protocol.test_consumer_group_metadata import VALUES
from ..protocol.test_streams_group_metadata import VALUES as STREAMS_VALUES

TOPIC = "__consumer_offsets"
KEYS = {value: key for value, (key, _) in (VALUES | share_groups.VALUES | STREAMS_VALUES).items()}


def row_of(key: str, value: str | None) -> dict[str, object] | None:
    data = None if value is None else bytes.fromhex(value)
    return coordinator_record(TOPIC, bytes.fromhex(key), data)


@pytest.mark.parametrize("value", KEYS)
def test_group_records_are_decoded(value: str) -> None:
    key = KEYS[value]
    row = row_of(key, value)
    assert row is not None
    assert row["group"] == "g"
    assert len(row) > 2
    tombstone = row_of(key, None)
    assert tombstone is not None
    assert tombstone["tombstone"] is True
    assert tombstone.keys() - row.keys() == {"tombstone"}


def test_current_assignment_record_is_decoded() -> None:
    value = next(each for each, (key, _) in VALUES.items() if key.startswith("0008"))
    row = row_of(VALUES[value][0], value)
    assert row is not None
    assert (row["member_id"], row["member_epoch"]) == ("m", 6)
    assert row["assigned_partitions"] == [
        {
            "topic_id": "00000000-0000-0001-0000-000000000002",
            "partitions": [0, 3],
            "assignment_epochs": [6, 2],
        }
    ]


def test_unknown_record_type_is_not_decoded() -> None:
    assert row_of("0063000167", "0000") is None
