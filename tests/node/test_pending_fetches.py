"""Tests of the limit of pending fetches, without connections."""

from __future__ import annotations

from kbroker.node.pending_fetches import PARTITIONS_FREE, PendingFetches


def test_fetches_above_total_limit_are_rejected_until_one_ends() -> None:
    fetches = PendingFetches(100)
    assert fetches.try_add("a", 50)
    assert fetches.try_add("b", 40)
    assert not fetches.try_add("c", 11)
    assert fetches.try_add("c", 10)
    fetches.remove("b", 40)
    assert fetches.try_add("d", 40)
    assert fetches.partitions == 100


def test_address_has_half_of_limit() -> None:
    fetches = PendingFetches(100)
    assert not fetches.try_add("a", 51)
    assert fetches.try_add("a", 30)
    assert not fetches.try_add("a", 21)
    assert fetches.try_add("b", 21)


def test_small_fetches_are_never_rejected_or_counted() -> None:
    fetches = PendingFetches(1)
    for _ in range(10):
        assert fetches.try_add("a", PARTITIONS_FREE)
    assert fetches.partitions == 0
    fetches.remove("a", PARTITIONS_FREE)
    assert not fetches.try_add("a", PARTITIONS_FREE + 1)
    assert fetches.partitions == 0


def test_addresses_without_fetches_take_no_memory() -> None:
    fetches = PendingFetches(100)
    for number in range(100):
        host = str(number)
        assert fetches.try_add(host, 50)
        assert not fetches.try_add(f"other {host}", 100)
        fetches.remove(host, 50)
    assert not fetches._of_host
