"""Malformed records and compressed streams, produced to kbroker and to Apache Kafka.

Both brokers must accept or reject each of them with the same error. STRICTER lists the batches that
only kbroker rejects, with reasons.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pytest
from harness.admin_calls import of, request
from harness.brokers import ApacheBroker, Broker, KbrokerBroker
from harness.codec_variants import variants
from harness.raw import RawConnection

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.records import LOG_APPEND_TIME_BIT, read_header, with_payload
from tests.protocol.malformed import (
    MALFORMED_RECORDS,
    NOW,
    PADDED_RECORDS,
    batch_of,
    record,
    varint,
)

CLIENT = "differential"
TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}
READY_SECONDS = 30.0
UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR
INVALID = ErrorCode.INVALID_RECORD

ANY_CODEC = list(Codec)
# Cases that kbroker rejects with INVALID_RECORD, and that Kafka accepts or rejects for their
# timestamp.
STRICTER: Mapping[str, list[Codec]] = {
    # Null is -1. The Java client accepts any negative length as null, others do not.
    "negative key": ANY_CODEC,
    "negative value": ANY_CODEC,
    "negative header value": ANY_CODEC,
    # The Java client ignores excess bits, others do not.
    "key length of 36 bits": ANY_CODEC,
    "time of 70 bits": ANY_CODEC,
    # Kafka does not check offsets of uncompressed batches. Consumers would see wrong offsets.
    "same offset delta": [Codec.NONE],
    "negative offset delta": [Codec.NONE],
    "offset delta that skips": [Codec.NONE],
    # Kafka does not check the sum of field lengths in compressed records. No client reads them.
    "record longer than it is": ANY_CODEC[1:],
    "record shorter than it is": ANY_CODEC[1:],
    # Trailing bytes that the Java client ignores and that stop other clients.
    "trailing byte": [Codec.GZIP, Codec.SNAPPY, Codec.LZ4],
    "trailing zeros": [Codec.GZIP, Codec.LZ4],
    "empty stream appended": [Codec.LZ4],
    "skippable frame appended": [Codec.LZ4],
    "truncated skippable frame appended": [Codec.ZSTD],
    # Checks of the codec that the Java client omits.
    "reserved flag": [Codec.GZIP],
    "wrong content size": [Codec.LZ4],
    "wrong content checksum": [Codec.LZ4],
}


@dataclass(slots=True)
class Case:
    """One batch."""

    name: str
    codec: Codec
    batch: bytes
    topic: str = "plain"


@dataclass(slots=True)
class Pair:
    """The two brokers."""

    ours: RawConnection
    theirs: RawConnection

    def differences(self, cases: Iterator[Case]) -> tuple[int, int, list[str]]:
        """Return the number of cases, the number that both rejected, and the differences."""
        found, refused, count = [], 0, 0
        for case in cases:
            count += 1
            ours, theirs = (_produce(each, case) for each in (self.ours, self.theirs))
            refused += bool(ours and theirs)
            # Kafka returns UNKNOWN_SERVER_ERROR for a stream that it cannot decompress.
            expected = INVALID if theirs == UNKNOWN else theirs
            if case.codec in STRICTER.get(case.name, []):
                if case.topic == "plain":
                    assert theirs != INVALID, (
                        f"{case.name} in {case.codec.name} is rejected by Kafka too; update STRICTER"
                    )
                expected = INVALID
            if ours != expected:
                found.append(f"{case.name}, {case.codec.name}, {case.topic}: {ours} for {theirs}")
        return count, refused, found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    brokers: list[Broker] = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker")),
        ApacheBroker(tmp_path_factory.mktemp("apache")),
    ]
    try:
        for broker in brokers:
            broker.start()
        with closing(_with_topics(brokers[0])) as ours, closing(_with_topics(brokers[1])) as theirs:
            yield Pair(ours, theirs)
    finally:
        for broker in brokers:
            broker.kill()


def _with_topics(broker: Broker) -> RawConnection:
    connection = RawConnection(broker.address)
    key = ApiKey.CREATE_TOPICS
    rows = [
        of(
            key,
            "Topic",
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[of(key, "Config", name=each, value=value) for each, value in configs.items()],
        )
        for name, configs in TOPICS.items()
    ]
    answer = connection.ask(key, 5, request(key, topics=rows, timeout_ms=10_000))
    assert [row.error_code for row in answer.topics] == [0] * len(TOPICS)
    for name in TOPICS:
        deadline = time.monotonic() + READY_SECONDS
        good = Case("good", Codec.NONE, batch_of(record(0), Codec.NONE, 1), name)
        while _produce(connection, good):
            assert time.monotonic() < deadline, name
            time.sleep(0.1)
    return connection


def _produce(connection: RawConnection, case: Case) -> ErrorCode:
    row = ProduceRequest.Partition(index=0, records=memoryview(case.batch))
    topic = ProduceRequest.Topic(name=case.topic, partition_data=[row])
    asked = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    answer = connection.ask(ApiKey.PRODUCE, 9, asked)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def malformed() -> Iterator[Case]:
    for codec in Codec:
        for topic in TOPICS:
            for name, build in MALFORMED_RECORDS.items():
                parts = [record(number) for number in range(20)]
                parts[11] = build(11)
                yield Case(name, codec, batch_of(b"".join(parts), codec, 20), topic)
        for name, build in PADDED_RECORDS.items():
            content = b"".join(map(build, range(70)))
            yield Case(f"padded {name}", codec, batch_of(content, codec, 70))


def headers() -> Iterator[Case]:
    """Generate headers that contradict their records or that clients do not write."""
    content = b"".join(record(number) for number in range(5))
    for codec in Codec:
        good = read_header(batch_of(content, codec, 5))
        payload = batch_of(content, codec, 5)[61:]
        stamped = codec | LOG_APPEND_TIME_BIT
        for name, fields in {
            "as it should be": {},
            "maximum in the future": {"max_timestamp": NOW * 2},
            "maximum before the records": {"max_timestamp": 5},
            "no maximum": {"max_timestamp": -1},
            "LogAppendTime": {"attributes": stamped},
            "LogAppendTime in the future": {"attributes": stamped, "max_timestamp": NOW * 2},
            "LogAppendTime without time": {"attributes": stamped, "max_timestamp": -1},
            "records in the future": {"base_timestamp": NOW * 2},
            "records before 1970": {"base_timestamp": -5},
            "records before all time": {"base_timestamp": -(2**63)},
            "delete horizon": {"attributes": codec | 0x40},
            "one more": {"record_count": 6, "last_offset_delta": 5},
            "one less": {"record_count": 4, "last_offset_delta": 3},
        }.items():
            for topic in TOPICS:
                batch, _ = with_payload(good._replace(**fields), payload)
                yield Case(name, codec, batch, topic)


def streams() -> Iterator[Case]:
    """Generate valid and invalid compressed streams of 270 kB of records."""
    content = b"".join(
        record(number, value=varint(300) + (b"value %d " % number * 60)[:300])
        for number in range(900)
    )
    header = read_header(batch_of(record(0), Codec.NONE, 1))
    for codec, name, stream in variants(content):
        claimed = header._replace(attributes=codec, record_count=900, last_offset_delta=899)
        yield Case(name, codec, with_payload(claimed, stream)[0])


def test_malformed_records_are_rejected_as_by_kafka(pair: Pair) -> None:
    count, refused, found = pair.differences(malformed())
    print(f"{count} batches, {refused} rejected by both")
    assert not found, "\n".join(found)
    assert count > 400
    assert refused > 300


def test_batch_headers_are_validated_as_by_kafka(pair: Pair) -> None:
    count, refused, found = pair.differences(headers())
    print(f"{count} batches, {refused} rejected by both")
    assert not found, "\n".join(found)
    assert refused > 50


def test_compressed_streams_are_validated_as_by_kafka(pair: Pair) -> None:
    count, refused, found = pair.differences(streams())
    print(f"{count} streams, {refused} rejected by both")
    assert not found, "\n".join(found)
    assert count > 200
    assert 50 < refused < count - 50
