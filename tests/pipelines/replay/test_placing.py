"""Which partition of the target a record goes to."""

from __future__ import annotations

import pytest

from kbroker.client.errors import ClientError
from kbroker.client.partitioner import partition_of
from kbroker.pipelines.replay.placing import Placing, by_key, keeps_partitions, kept
from kbroker.protocol.records import Record


@pytest.mark.parametrize(
    ("placing", "source", "target", "keeps"),
    [
        (Placing.AUTO, 3, 3, True),
        (Placing.AUTO, 3, 2, False),
        (Placing.AUTO, 3, 4, False),  # Java's producer would put keys elsewhere
        (Placing.AUTO, None, 4, True),
        (Placing.KEEP, 3, 4, True),
        (Placing.KEY, 3, 3, False),
    ],
)
def test_when_partitions_are_kept(
    placing: Placing, source: int | None, target: int, keeps: bool
) -> None:
    assert keeps_partitions(placing, source, target) == keeps


def test_kept() -> None:
    place = kept(3)
    assert [place(index, Record(b"k")) for index in range(3)] == [0, 1, 2]
    assert place(None, Record(b"k")) == partition_of(b"k", 3)
    with pytest.raises(ClientError, match="--place key"):
        place(3, Record(b"k"))


def test_by_key() -> None:
    place = by_key(4)
    for key in (b"a", b"b", b"a long key", b""):
        assert place(0, Record(key)) == partition_of(key, 4) == place(9, Record(key))
    assert [place(7, Record(None, offset=at)) for at in range(3)] == [3, 3, 3]
    assert [place(None, Record(None, offset=at)) for at in range(5)] == [0, 1, 2, 3, 0]
