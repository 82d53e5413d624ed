"""Audits of a broker's topics over the network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from confluent_kafka import Producer

from kbroker.cli.target import Target, run
from kbroker.client.credentials import OPEN
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import NoSuchPartition, NoSuchTopic
from kbroker.client.topics import delete_records
from kbroker.pipelines.audit import AuditError, Kind, check_same, check_topic
from kbroker.pipelines.audit.rows import Reason
from kbroker.storage.naming import LOG, file_name
from kbroker.testing import LocalBroker

TIME = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(config={"log.cleaner.backoff.ms": 100}) as running:
        yield running


def produce(
    broker: LocalBroker, topic: str, count: int, *, without: frozenset[int] = frozenset()
) -> None:
    """Write numbered records to two partitions, some with headers, some tombstones."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number in range(count):
        if number not in without:
            producer.produce(
                topic,
                key=b"k%d" % number,
                value=None if number % 10 == 3 else b'{"id": %d}' % number,
                headers=[("n", b"%d" % number)] if number % 2 else None,
                partition=number % 2,
                timestamp=TIME + number,
            )
    assert producer.flush(20) == 0


def test_audit_of_intact_topic_reports_no_problems(broker: LocalBroker) -> None:
    broker.create_topic("sound", partitions=2)
    produce(broker, "sound", 500)
    report = check_topic(broker.bootstrap_servers, "sound", unique="record")
    assert (report.records, report.keys, report.keys_exact, report.repeated) == (500, 500, True, 0)
    first = report.partitions[0]
    assert (first.first_offset, first.last_offset, first.records) == (0, 249, 250)
    assert (first.first_timestamp, first.last_timestamp) == (TIME, TIME + 498)
    assert report.partitions[1].with_headers == 250
    assert sum(one.tombstones for one in report.partitions) == 50


def test_audit_explains_gaps_of_transactions_and_deleted_records(broker: LocalBroker) -> None:
    broker.create_topic("paid", partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "p"})
    producer.init_transactions()
    for round_ in range(3):
        producer.begin_transaction()
        for number in range(10):
            producer.produce("paid", key=b"%d" % number, value=b"%d" % round_)
        producer.flush()
        if round_ == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    report = check_topic(broker.bootstrap_servers, "paid")
    assert report.records == 20
    assert dict(report.partitions[0].absent) == {Reason.CONTROL: 3, Reason.ABORTED: 10}
    assert check_topic(broker.bootstrap_servers, "paid", committed=False).records == 30

    target = Target([Endpoint.parse(broker.bootstrap_servers)], "test", OPEN)
    run(target, lambda cluster: delete_records(cluster, {("paid", 0): 5}))
    moved = check_topic(broker.bootstrap_servers, "paid")
    assert (moved.records, moved.partitions[0].log_start) == (15, 5)

    producer.begin_transaction()
    producer.produce("paid", b"open")
    producer.flush()
    still = check_topic(broker.bootstrap_servers, "paid")
    assert (still.records, still.partitions[0].beyond_stable) == (15, 1)
    producer.abort_transaction()


def test_audit_explains_gaps_of_compacted_topic(broker: LocalBroker) -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "internal.segment.bytes": "1000",
        "delete.retention.ms": "0",
    }
    broker.create_topic("latest", configs=configs)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 10})
    deadline = time.monotonic() + 30
    report = None
    while report is None or not report.partitions[0].absent[Reason.COMPACTION]:
        assert time.monotonic() < deadline, report
        for number in range(50):
            producer.produce("latest", key=b"%d" % (number % 5), value=b"%d" % number)
        assert producer.flush(20) == 0
        report = check_topic(broker.bootstrap_servers, "latest", committed=False)
    assert report.compacted
    assert report.keys == 5


def test_repeated_records_are_found_by_identity(broker: LocalBroker) -> None:
    broker.create_topic("again", partitions=2)
    produce(broker, "again", 20)
    broker.produce("again", b'{"id": 4}', key=b"k4", partition=1, timestamp=TIME + 4)
    assert check_topic(broker.bootstrap_servers, "again").repeated == 1
    with pytest.raises(AuditError) as found:
        check_topic(broker.bootstrap_servers, "again", unique="field:id")
    # Both tombstones lack the field, so they have equal identities.
    assert found.value.findings.counts == {Kind.DUPLICATE: 2}
    with pytest.raises(AuditError, match=r"again-1 at 10: .* \(key 'k4'\)"):
        check_topic(broker.bootstrap_servers, "again", unique="key")


def test_copied_topics_are_compared_by_offset_and_by_identity(broker: LocalBroker) -> None:
    """One copy keeps offsets, one loses a record, and one has a duplicate and other offsets."""
    broker.create_topic("original", partitions=2)
    broker.create_topic("mirror", partitions=2)
    broker.create_topic("other", partitions=3)
    produce(broker, "original", 100)
    produce(broker, "mirror", 100)
    report = check_same(broker.bootstrap_servers, "original", "mirror")
    assert [one.equal for one in report.compared] == [50, 50]

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for record in broker.records("original"):
        producer.produce("other", key=record.key, value=record.value, headers=list(record.headers))
    assert producer.flush(20) == 0
    for by in ("record", "key", "header:n"):
        check_same(broker.bootstrap_servers, "original", "other", by=by)
    broker.produce("other", b'{"id": 7}', key=b"k7", headers=[("n", b"7")])
    check_same(broker.bootstrap_servers, "original", "other", by="key", distinct=True)
    with pytest.raises(AuditError, match="1 doubled") as doubled:
        check_same(broker.bootstrap_servers, "original", "other", by="record")
    assert "this record occurs 1 times in original, 2 times in other (key 'k7')" in str(
        doubled.value
    )

    broker.create_topic("poor", partitions=2)
    produce(broker, "poor", 100, without=frozenset({99}))
    with pytest.raises(AuditError, match=r"1 missing\nmissing: original-1 at 49"):
        check_same(broker.bootstrap_servers, "original", "poor")
    with pytest.raises(AuditError, match=r"missing: original-1 at 49: .* \(key 'k99'\)"):
        check_same(broker.bootstrap_servers, "original", "poor", by="key")
    with pytest.raises(AuditError, match=r"1 extra\nextra: original-1 at 49"):
        check_same(broker.bootstrap_servers, "poor", "original", by="key")


def test_partitions_missing_on_one_side_are_found(broker: LocalBroker) -> None:
    broker.create_topic("wide", partitions=2)
    broker.create_topic("narrow")
    with pytest.raises(AuditError, match="wide-1: narrow has no such partition"):
        check_same(broker.bootstrap_servers, "wide", "narrow")
    with pytest.raises(AuditError, match="narrow-1: wide has this partition"):
        check_same(broker.bootstrap_servers, "narrow", "wide")


def test_missing_topics_and_partitions_are_rejected(broker: LocalBroker) -> None:
    with pytest.raises(NoSuchTopic):
        check_topic(broker.bootstrap_servers, "nowhere")
    broker.create_topic("one")
    with pytest.raises(NoSuchPartition):
        check_topic(broker.bootstrap_servers, "one", partitions=[1])
    assert check_topic(broker.bootstrap_servers, "one", partitions=[0]).records == 0


def test_corrupt_batch_on_disk_is_found(tmp_path: Path) -> None:
    with LocalBroker(data_dir=str(tmp_path), topics={"kept": 1}) as broker:
        for value in (b"first", b"second", b"third"):
            broker.produce("kept", value)
        check_topic(broker.bootstrap_servers, "kept")
        segment = tmp_path / "kept-0" / file_name(0, LOG)
        data = segment.read_bytes()
        segment.write_bytes(data.replace(b"second", b"sec0nd"))
        with pytest.raises(AuditError, match="1 crc") as found:
            check_topic(broker.bootstrap_servers, "kept")
    assert "kept-0 at 1: the batch of offsets 1 to 1 does not match its CRC" in str(found.value)


async def test_audit_runs_in_thread_of_trio_program() -> None:
    """Trio programs must call the blocking audit in a thread."""

    def audited() -> int:
        with LocalBroker(topics={"t": 1}) as broker:
            return check_topic(broker.bootstrap_servers, "t").records

    assert await trio.to_thread.run_sync(audited) == 0
