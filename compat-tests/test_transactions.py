"""Transactions of every client: commit, abort, fencing, timeout, offsets, isolation levels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import WORKERS, ClientError, ClientProcess, Library, eventually
from harness.tools import Tools

pytestmark = [pytest.mark.everyone, pytest.mark.java, pytest.mark.needs("transactional")]

Unique = Callable[[str], str]
Workers = Callable[[str], ClientProcess]
# Minimum transaction timeout of librdkafka.
SHORT_MS = 1000
# Seconds that a reader waits for records that must not arrive; earlier records arrive sooner.
BLOCKED_SECONDS = 1.0


@pytest.fixture
def worker(client: Library, workers: Workers) -> ClientProcess:
    return workers(client.name)


@pytest.fixture
def admin(workers: Workers) -> ClientProcess:
    """Return confluent-kafka, which creates topics and reads end offsets for the client under test."""
    return workers("confluent-kafka")


@pytest.fixture
def topic(admin: ClientProcess, unique: Unique) -> str:
    name = unique("topic")
    admin.admin("create_topic", name=name, partitions=1)
    return name


def send(worker: ClientProcess, producer: str, topic: str, *values: str) -> list[int]:
    """Send values to partition 0 in the transaction and return their offsets."""
    records = [{"value": value, "partition": 0} for value in values]
    answers = worker("send", producer=producer, topic=topic, records=records)
    for answer in answers:
        if "error" in answer:
            raise ClientError("send", answer["error"], worker.stderr_tail())
    return [answer["offset"] for answer in answers]


def transact(
    worker: ClientProcess, producer: str, topic: str, *values: str, commit: bool
) -> list[int]:
    """Run a complete transaction and return the offsets of its records."""
    worker("begin", producer=producer)
    offsets = send(worker, producer, topic, *values)
    worker("end", producer=producer, commit=commit)
    return offsets


def read(reader: ClientProcess, topic: str, count: int, isolation: str, **more: Any) -> list[str]:
    rows = reader("read", topic=topic, count=count, isolation=isolation, **more)
    return [row["value"] for row in rows]


def stable_end(admin: ClientProcess, topic: str) -> int:
    """Return the last stable offset of partition 0."""
    return int(admin("offsets", topic=topic, at="latest", isolation="read_committed")["0"])


@pytest.mark.sample
def test_read_committed_returns_only_committed_records(
    worker: ClientProcess, admin: ClientProcess, topic: str, unique: Unique
) -> None:
    """Markers use offsets. Only read_uncommitted consumers get aborted records."""
    worker("transactional", producer="p", identity=unique("id"))
    assert transact(worker, "p", topic, "a", "b", commit=True) == [0, 1]
    assert transact(worker, "p", topic, "not this", "nor this", commit=False) == [3, 4]
    assert transact(worker, "p", topic, "c", commit=True) == [6]
    worker("close", producer="p")
    assert stable_end(admin, topic) == 8
    assert read(worker, topic, 3, "read_committed") == ["a", "b", "c"]
    everything = ["a", "b", "not this", "nor this", "c"]
    assert read(worker, topic, 5, "read_uncommitted") == everything


def test_open_transaction_blocks_read_committed(
    worker: ClientProcess, admin: ClientProcess, topic: str, unique: Unique
) -> None:
    """Records after the first open transaction, plain ones too, are read when it has ended."""
    worker("transactional", producer="p", identity=unique("id"))
    transact(worker, "p", topic, "first", commit=True)
    worker("begin", producer="p")
    send(worker, "p", topic, "open")
    admin("produce", topic=topic, records=[{"value": "plain", "partition": 0}])
    assert stable_end(admin, topic) == 2
    few = {"seconds": BLOCKED_SECONDS}
    assert read(worker, topic, 3, "read_committed", **few) == ["first"]
    assert read(worker, topic, 3, "read_uncommitted") == ["first", "open", "plain"]
    worker("end", producer="p", commit=True)
    worker("close", producer="p")
    assert read(worker, topic, 3, "read_committed") == ["first", "open", "plain"]


# Error at the end of the transaction of a fenced producer.
FENCED = {
    "kafka-python-3": "ProducerFencedError(90)",
    "confluent-kafka": "_FENCED",
    "aiokafka": "ProducerFenced(None)",
    "java-3.9": "ProducerFencedException(90)",
    "java-4.4": "ProducerFencedException(90)",
    "franz-go": "PRODUCER_FENCED",
    "sarama": "sarama.KError(90)",
    # KafkaJS sends EndTxn version 1. Only version 2 and later return PRODUCER_FENCED; version 1
    # returns INVALID_PRODUCER_EPOCH instead.
    "kafkajs": "KafkaJSProtocolError(47)",
}

# Error of a fenced producer when it writes. Produce has one error code for all old epochs.
OLD_EPOCH = {
    **FENCED,
    "kafka-python-3": "InvalidProducerEpochError(47)",
    "java-3.9": "InvalidProducerEpochException(47)",
    "java-4.4": "InvalidProducerEpochException(47)",
    "franz-go": "INVALID_PRODUCER_EPOCH",
    "sarama": "sarama.KError(47)",
}

# Error at the end of a transaction that the coordinator has aborted.
TIMED_OUT = {
    **FENCED,
    # With transaction version 2, late and fenced producers get different errors.
    "java-4.4": "InvalidTxnStateException(48)",
    "franz-go": "INVALID_TXN_STATE",
}


def describe_error(error: ClientError) -> str:
    return f"{error.kind}({error.code}) {error.message}"


@pytest.mark.needs("reuses_transactional_ids")
def test_second_producer_fences_first(
    client: Library, worker: ClientProcess, topic: str, unique: Unique
) -> None:
    """A second producer with the same id aborts the first one's transaction."""
    worker("transactional", producer="old", identity=unique("id"))
    worker("begin", producer="old")
    send(worker, "old", topic, "zombie")
    worker("transactional", producer="new", identity=unique("id"))
    assert transact(worker, "new", topic, "heir", commit=True) == [2]
    with pytest.raises(ClientError) as caught:
        worker("end", producer="old", commit=True)
    assert FENCED[client.name] in describe_error(caught.value)
    worker("close", producer="old")
    transact(worker, "new", topic, "goes on", commit=True)
    worker("close", producer="new")
    assert read(worker, topic, 2, "read_committed") == ["heir", "goes on"]
    assert read(worker, topic, 3, "read_uncommitted") == ["zombie", "heir", "goes on"]


@pytest.mark.needs("reuses_transactional_ids")
def test_fenced_producer_cannot_write(
    client: Library, worker: ClientProcess, topic: str, unique: Unique
) -> None:
    """A fenced producer cannot write."""
    worker("transactional", producer="old", identity=unique("id"))
    worker("begin", producer="old")
    send(worker, "old", topic, "zombie")
    worker("transactional", producer="new", identity=unique("id"))
    transact(worker, "new", topic, "heir", commit=True)
    with pytest.raises(ClientError) as caught:
        send(worker, "old", topic, "late")
    assert OLD_EPOCH[client.name] in describe_error(caught.value)
    worker("close", producer="old")
    transact(worker, "new", topic, "goes on", commit=True)
    worker("close", producer="new")
    assert read(worker, topic, 3, "read_uncommitted") == ["zombie", "heir", "goes on"]


@pytest.mark.needs("reuses_transactional_ids")
def test_coordinator_aborts_transaction_after_timeout(
    client: Library, worker: ClientProcess, admin: ClientProcess, topic: str, unique: Unique
) -> None:
    """The producer gets an error at the end of the aborted transaction."""
    worker("transactional", producer="late", identity=unique("id"), timeout_ms=SHORT_MS)
    worker("begin", producer="late")
    send(worker, "late", topic, "too late")
    eventually(lambda: stable_end(admin, topic), lambda end: end == 2, "aborted")
    with pytest.raises(ClientError) as caught:
        worker("end", producer="late", commit=True)
    assert TIMED_OUT[client.name] in describe_error(caught.value)
    worker("close", producer="late")
    worker("transactional", producer="next", identity=unique("id"))
    transact(worker, "next", topic, "in time", commit=True)
    worker("close", producer="next")
    assert read(worker, topic, 1, "read_committed") == ["in time"]


@pytest.mark.needs("reuses_transactional_ids")
def test_consume_transform_produce_is_atomic(
    worker: ClientProcess, admin: ClientProcess, topic: str, unique: Unique
) -> None:
    """Offsets and results are atomic: the next member repeats an aborted round."""
    source, group = unique("source"), unique("group")
    admin.admin("create_topic", name=source, partitions=1)
    records = [{"value": value, "partition": 0} for value in ("a", "b", "c")]
    admin("produce", topic=source, records=records)
    round_of = {"identity": unique("id"), "group": group, "source": source, "target": topic}
    worker("transform", **round_of, count=3, commit=False)
    assert admin("committed", group=group, topic=source) == {"0": None}
    worker("transform", **round_of, count=3, commit=True)
    assert admin("committed", group=group, topic=source) == {"0": 3}
    admin("produce", topic=source, records=[{"value": "d", "partition": 0}])
    worker("transform", **round_of, count=1, commit=True)
    assert admin("committed", group=group, topic=source) == {"0": 4}
    assert read(worker, topic, 4, "read_committed") == ["A", "B", "C", "D"]
    assert sorted(read(worker, topic, 7, "read_uncommitted")) == list("AABBCCD")


def test_kafka_transactions_lists_and_aborts_transaction(
    broker: Broker, tools: Tools, admin: ClientProcess, topic: str
) -> None:
    """kafka-transactions aborts an open transaction without its producer."""

    def tool(verb: str, *arguments: str) -> list[list[str]]:
        """Return the rows of the tool's table without its header."""
        address = ("--bootstrap-server", broker.address)
        done = tools.run("kafka-transactions", *address, verb, *arguments)
        assert not done.status, done
        return [line.split() for line in done.stdout.splitlines()[1:]]

    identity = f"id-of-{topic}"
    admin("transactional", producer="p", identity=identity)
    admin("begin", producer="p")
    send(admin, "p", topic, "open")
    (listed,) = [row for row in tool("list") if row[0] == identity]
    _, node, producer_id, state = listed
    assert (node, state) == ("1", "Ongoing")
    (described,) = tool("describe", "--transactional-id", identity)
    assert described[1:6] == [identity, producer_id, "0", "Ongoing", "60000"]
    assert described[-1] == f"{topic}-0"
    where = ("--topic", topic, "--partition", "0")
    (writer,) = tool("describe-producers", *where)
    assert (writer[0], writer[1], writer[-1]) == (producer_id, "0", "0")
    assert tool("find-hanging", "--broker-id", "1") == []
    tool("abort", *where, "--start-offset", "0")
    assert stable_end(admin, topic) == 2
    (writer,) = tool("describe-producers", *where)
    assert (writer[0], writer[-1]) == (producer_id, "None")
    admin("end", producer="p", commit=False)
    admin("close", producer="p")


def test_producers_continue_when_transaction_version_changes(
    make_broker: Callable[..., Broker], tools: Tools, spawn: Callable[..., ClientProcess]
) -> None:
    """kafka-features downgrades and upgrades transaction.version while producers continue."""
    broker = make_broker("protocols")
    broker.start()
    clients = {
        name: spawn(WORKERS[name], broker.address)
        for name in ("confluent-kafka", "franz-go", "java-4.4")
    }
    admin = clients["confluent-kafka"]
    for name in clients:
        admin.admin("create_topic", name=name, partitions=1)
    committed: list[str] = []
    for number, (verb, level) in enumerate((("upgrade", 2), ("downgrade", 1), ("upgrade", 2))):
        feature = f"transaction.version={level}"
        address = ("--bootstrap-server", broker.address)
        done = tools.run("kafka-features", *address, verb, "--feature", feature)
        assert not done.status, done
        for name, client in clients.items():
            client("transactional", producer=str(number), identity=f"{name}-{number}")
            # The producers of earlier rounds were created before this change of the version.
            for producer in range(number + 1):
                for commit in (True, False, True):
                    value = f"{number}-{producer}-{commit}"
                    transact(client, str(producer), name, value, commit=commit)
        committed += [f"{number}-{producer}-True" for producer in range(number + 1)] * 2
    for name, client in clients.items():
        for number in range(3):
            client("close", producer=str(number))
        assert sorted(read(client, name, len(committed), "read_committed")) == sorted(committed)
    broker.stop()
