from __future__ import annotations

import pytest

from kbroker.storage.files import MemFiles
from kbroker.storage.producer_state import ProducerStates
from kbroker.storage.snapshots import Snapshots
from kbroker.storage.sync import sync_in_order

from .helpers import NOW, batch


@pytest.fixture
def files() -> MemFiles:
    files = MemFiles()
    files.mkdir("d")
    return files


def states(producer_id: int) -> ProducerStates:
    states = ProducerStates()
    _, header = batch(b"x", producer_id=producer_id, epoch=0, sequence=0)
    states.update(header, 0, NOW)
    return states


def producer_ids_in(found: tuple[int, ProducerStates]) -> tuple[int, list[int]]:
    return found[0], [producer_id for producer_id, _ in found[1]]


def test_newest_valid_snapshot_is_used(files: MemFiles) -> None:
    snapshots = Snapshots(files, "d")
    for offset in (10, 20, 30):
        sync_in_order(snapshots.save(states(offset), offset, (10, 20, 30)))
    assert producer_ids_in(snapshots.newest(0, 100, NOW)) == (30, [30])
    assert producer_ids_in(snapshots.newest(0, 29, NOW)) == (20, [20])
    assert producer_ids_in(snapshots.newest(25, 29, NOW)) == (25, [])
    files.write_atomic("d/00000000000000000030.snapshot", b"damaged")
    files.remove("d/00000000000000000020.snapshot")
    assert producer_ids_in(snapshots.newest(0, 100, NOW)) == (10, [10])


def test_snapshot_within_a_segment_is_replaced(files: MemFiles) -> None:
    snapshots = Snapshots(files, "d")
    for offset in (10, 15, 18, 20, 27):
        sync_in_order(snapshots.save(states(1), offset, (10, 20)))
    assert snapshots.offsets == [10, 20, 27]
    assert [int(name[:20]) for name in files.listdir("d")] == [10, 20, 27]
    assert snapshots.save(states(1), 27, (10, 20)) == []


def test_dropped_snapshot_is_removed(files: MemFiles) -> None:
    snapshots = Snapshots(files, "d")
    for offset in (10, 20, 30):
        sync_in_order(snapshots.save(states(1), offset, (10, 20, 30)))
    sync_in_order(snapshots.drop(10))
    assert snapshots.drop(11) == []
    assert snapshots.drop_after(20)
    assert not snapshots.drop_after(20)
    assert files.listdir("d") == ["00000000000000000020.snapshot"]
    assert snapshots.offsets == [20]
