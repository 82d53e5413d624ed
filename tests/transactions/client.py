"""Client processes of the bank that can be killed: producers, transformers and a reader.

Usage: python -m tests.transactions.client NAME LIFE BOOTSTRAP DIRECTORY SEED. The name begins with
the kind. Each client records its operations in a file. SIGTERM ends it after its transaction. It
exits with `FATAL` if it is fenced or hangs.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from .history import READ_COMMITTED, READ_UNCOMMITTED, Operation, Phase, Place, Recorder
from .second_protocol import SecondProtocolProducer

PARTITIONS = {"in": 2, "side": 2, "more": 1, "out": 2}
INPUT, OUTPUT = "in", "out"
GROUP = "bank"
PLACES: list[Place] = [(topic, index) for topic, n in PARTITIONS.items() for index in range(n)]
SOURCES: list[Place] = [place for place in PLACES if place[0] != OUTPUT]
INPUTS: list[Place] = [place for place in PLACES if place[0] == INPUT]

ABORTED = 0.3
SENDS_MAX = 8
BATCH_MAX = 10
# Pause between two steps of a transaction: a fault then often hits an open transaction.
PAUSE_SECONDS_MAX = 0.004
# Number of pauses before the end of a transaction.
LONG_PAUSE = 5
CALL_SECONDS = 2.0
HANG_SECONDS = 2 * CALL_SECONDS
SETTLE_SECONDS = 5.0
TIMEOUT_MS, BRIEF_TIMEOUT_MS = 60_000, 1_500
# Clients with a short transaction timeout: a pause lets their transactions expire.
BRIEF = ("producer-1", "producer2-0")
SESSION_TIMEOUT_MS = 1500
VALUES_PER_LIFE = 10**6
LIVES_PER_NAME = 10**3
FATAL = 3

_COMMON = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 5000,
    "metadata.recovery.strategy": "none",  # librdkafka #5511
    "log_level": 0,
}


class MustAbort(Exception):
    """The transaction failed and must be aborted."""


class Client:
    """Base class of all clients."""

    def __init__(self, name: str, life: int, bootstrap: str, directory: Path, seed: int) -> None:
        self.name = name
        self.process = f"{name}.{life}"
        self.recorder = Recorder(directory / f"{self.process}.jsonl", self.process)
        self.random = random.Random(f"{seed} {self.process}")
        self.stopping = False
        self.settings: dict[str, Any] = {"bootstrap.servers": bootstrap, **_COMMON}

    def stop(self, *_: object) -> None:
        """Request the client to stop."""
        self.stopping = True

    def pause(self, times: int = 1) -> None:
        time.sleep(self.random.uniform(0, times * PAUSE_SECONDS_MAX))


class Transactional(Client):
    """A transactional client; it initialises its transactional ID when it is created."""

    def __init__(self, name: str, life: int, bootstrap: str, directory: Path, seed: int) -> None:
        super().__init__(name, life, bootstrap, directory, seed)
        first = (_number(name) * LIVES_PER_NAME + life) * VALUES_PER_LIFE
        self._values = itertools.count(first)
        self._names = itertools.count(1)
        self.timeout_ms = BRIEF_TIMEOUT_MS if name in BRIEF else TIMEOUT_MS
        self.transaction = ""
        self._unanswered = 0
        self._producer = self._open_producer(bootstrap)
        self._call(
            Operation.INIT,
            self._producer.init_transactions,
            transactional_id=name,
            timeout_ms=self.timeout_ms,
        )

    def _open_producer(self, _: str) -> Any:
        return Producer(
            {
                **self.settings,
                "transactional.id": self.name,
                "transaction.timeout.ms": self.timeout_ms,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
            }
        )

    def begin(self) -> None:
        self.transaction = f"{self.process}#{next(self._names)}"
        self.recorder.write(Operation.BEGIN, transaction=self.transaction)
        self._repeat(self._producer.begin_transaction)

    def send(self, place: Place, source: int = -1) -> None:
        """Send the next value without waiting for its acknowledgement. Raises MustAbort."""
        value = next(self._values)
        fields: dict[str, Any] = {"transaction": self.transaction, "value": value, "place": place}

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            self._unanswered -= 1
            if error is None:
                self.recorder.write(Operation.SEND, offset=message.offset(), **fields)
                return
            self.recorder.write(Operation.SEND, Phase.UNKNOWN, error=error.name(), **fields)

        self.recorder.write(Operation.SEND, Phase.INVOKED, source=source, **fields)
        data = b"%d;%d" % (value, source)
        topic, index = place
        self._repeat(
            lambda: self._producer.produce(topic, data, partition=index, on_delivery=on_delivery)
        )
        self._unanswered += 1
        self._poll_deliveries(0)

    def send_offsets(self, offsets: dict[Place, int], member: Any) -> None:
        """Add the offsets to the transaction. Raises MustAbort."""
        rows = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
        claims: list[dict[str, Any]] = [
            {"transaction": self.transaction, "group": GROUP, "place": place, "offset": at}
            for place, at in offsets.items()
        ]
        for claim in claims:
            self.recorder.write(Operation.OFFSETS, Phase.INVOKED, **claim)
        # librdkafka #5456: if the broker dies now, the call does not return.
        watchdog = threading.Timer(HANG_SECONDS, os._exit, [FATAL])
        watchdog.start()
        try:
            self._repeat(
                lambda: self._producer.send_offsets_to_transaction(rows, member, CALL_SECONDS)
            )
        finally:
            watchdog.cancel()
        for claim in claims:
            self.recorder.write(Operation.OFFSETS, **claim)

    def end(self, *, commit: bool) -> bool:
        """Commit or abort the transaction. Returns True if it is committed."""
        if commit:
            try:
                self._call(
                    Operation.COMMIT,
                    lambda: self._producer.commit_transaction(CALL_SECONDS),
                    transaction=self.transaction,
                )
            except MustAbort:
                commit = False
        if not commit:
            self._settle()
            self._call(
                Operation.ABORT,
                lambda: self._producer.abort_transaction(CALL_SECONDS),
                transaction=self.transaction,
            )
        return commit

    def _settle(self) -> None:
        """Wait for the responses to all records, because librdkafka aborts too early.

        An abort that overtakes the first record is fatal (librdkafka #4849). librdkafka also drops
        a record that it has to retry and reuses its sequence number for the next record. The broker
        then treats the next record as a duplicate, and it is lost.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._unanswered:
            self._poll_deliveries(0.01)
            if time.monotonic() > deadline:
                self._exit("no response to records")

    def _poll_deliveries(self, seconds: float) -> None:
        """Process delivery reports. librdkafka also reports here that the producer was fenced."""
        try:
            self._producer.poll(seconds)
        except KafkaException as failed:
            self._exit(failed.args[0])

    def _call(self, operation: Operation, call: Callable[[], object], **fields: Any) -> None:
        """Repeat a call until it has a result. Raises MustAbort if the transaction failed."""
        self.recorder.write(operation, Phase.INVOKED, **fields)
        try:
            self._repeat(call)
        except MustAbort as error:
            self.recorder.write(operation, Phase.FAIL, error=str(error), **fields)
            raise
        self.recorder.write(operation, **fields)

    def _repeat(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
                return
            except KafkaException as failed:
                error = failed.args[0]
                if error.txn_requires_abort():
                    raise MustAbort(error.name()) from failed
                if not error.retriable():
                    self._exit(error)

    def _exit(self, error: object) -> NoReturn:
        """Exit at once: the history would lack the requests that the producer sends on close."""
        print(f"{self.process}: {error}", file=sys.stderr, flush=True)
        os._exit(FATAL)


class TransactionalProducer(Transactional):
    """A producer of transactions to all topics except the output; it aborts some of them."""

    def run(self) -> None:
        while not self.stopping:
            self.begin()
            commit = self.random.random() > ABORTED
            places = self.random.sample(SOURCES, self.random.randint(1, len(SOURCES)))
            try:
                for _ in range(self.random.randint(1, SENDS_MAX)):
                    self.send(self.random.choice(places))
                    self.pause()
                self.pause(LONG_PAUSE)
            except MustAbort:
                commit = False
            self.end(commit=commit)


class Transformer(Transactional):
    """A group member that writes one output per input, and commits offsets in the transaction."""

    def __init__(self, name: str, life: int, bootstrap: str, directory: Path, seed: int) -> None:
        super().__init__(name, life, bootstrap, directory, seed)
        self._positions: dict[Place, int] = {}
        self._batch: list[Any] = []
        self._member: Any = None
        self._consumer = Consumer(
            {
                **self.settings,
                "group.id": GROUP,
                "isolation.level": READ_COMMITTED,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 200,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 20,
            }
        )
        self._consumer.subscribe([INPUT], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, consumer: Any, _: object) -> None:
        self._forget()
        # Later the metadata could be of a generation that assigns these partitions to others.
        self._member = consumer.consumer_group_metadata()

    def _on_revoke(self, *_: object) -> None:
        self._forget()

    def _forget(self) -> None:
        self._positions.clear()
        self._batch.clear()

    def run(self) -> None:
        while not self.stopping:
            self._take()
            if self._batch:
                self._transform()
        self._consumer.close()

    def _take(self) -> None:
        """Fill the batch. A rebalance during this empties it."""
        self._batch.clear()
        wait = 0.1
        while len(self._batch) < BATCH_MAX:
            message = self._consumer.poll(wait)
            if message is None:
                break
            if message.error() is None:
                self._batch.append(message)
                wait = 0
        _write_polls(self.recorder, READ_COMMITTED, self._batch, self._positions)

    def _transform(self) -> None:
        offsets = {_place(message): message.offset() + 1 for message in self._batch}
        self.begin()
        commit = self.random.random() > ABORTED
        try:
            for message in self._batch:
                place = (OUTPUT, self.random.randrange(PARTITIONS[OUTPUT]))
                self.send(place, source=_value(message))
                self.pause()
            self.pause(LONG_PAUSE)
            self.send_offsets(offsets, self._member)
            self.pause()
        except MustAbort:
            commit = False
        if not self.end(commit=commit):
            self._seek_to_committed()

    def _seek_to_committed(self) -> None:
        """Seek back to the committed offsets."""
        self._forget()
        while True:
            try:
                partitions = self._consumer.committed(self._consumer.assignment(), CALL_SECONDS)
                break
            except KafkaException:
                time.sleep(0.02)
        for partition in partitions:
            partition.offset = max(partition.offset, 0)
            self._consumer.seek(partition)


class SecondProtocol(Transactional):
    """A client that uses transaction protocol 2 (KIP-890) instead of librdkafka."""

    def _open_producer(self, bootstrap: str) -> Any:
        return SecondProtocolProducer(bootstrap, self.name, self.timeout_ms)


class SecondProducer(SecondProtocol, TransactionalProducer):
    """A producer with transaction protocol 2."""


class SecondTransformer(SecondProtocol, Transformer):
    """A transformer with transaction protocol 2."""


class Reader(Client):
    """A read_committed and a read_uncommitted consumer that also sample all kinds of offsets."""

    def __init__(self, name: str, life: int, bootstrap: str, directory: Path, seed: int) -> None:
        super().__init__(name, life, bootstrap, directory, seed)
        self._consumers = {
            isolation: self._open(isolation) for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
        }

    def _open(self, isolation: str) -> Any:
        consumer = Consumer(
            {
                **self.settings,
                "group.id": GROUP,
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 20,
            }
        )
        consumer.assign([TopicPartition(topic, index, 0) for topic, index in PLACES])
        return consumer

    def run(self) -> None:
        positions: dict[str, dict[Place, int]] = {each: {} for each in self._consumers}
        while not self.stopping:
            for isolation, consumer in self._consumers.items():
                messages = [each for each in consumer.consume(500, 0.02) if each.error() is None]
                _write_polls(self.recorder, isolation, messages, positions[isolation])
            try:
                self.sample(self.random.choice(PLACES))
            except KafkaException:
                time.sleep(0.02)  # the broker is down

    def sample(self, place: Place) -> None:
        """Record the offsets of a partition. Raises KafkaException if no broker responds."""
        partition = TopicPartition(*place)
        for operation, isolation in (
            (Operation.STABLE, READ_COMMITTED),
            (Operation.END, READ_UNCOMMITTED),
        ):
            since = time.monotonic_ns()
            consumer = self._consumers[isolation]
            _, end = consumer.get_watermark_offsets(partition, timeout=CALL_SECONDS)
            self.recorder.write(
                operation, place=place, offset=end, since=since, isolation=isolation
            )
        if place in INPUTS:
            since = time.monotonic_ns()
            (row,) = self._consumers[READ_COMMITTED].committed([partition], CALL_SECONDS)
            offset = max(row.offset, -1)
            self.recorder.write(
                Operation.COMMITTED, group=GROUP, place=place, offset=offset, since=since
            )

    def is_drained(self) -> bool:
        """Return True if the group's offset is past the last committed record of each input."""
        records, _ = _read_to_end(self._consumers[READ_COMMITTED])
        partitions = [TopicPartition(*place) for place in INPUTS]
        try:
            rows = self._consumers[READ_COMMITTED].committed(partitions, CALL_SECONDS)
        except KafkaException:
            return False  # no response in time; the caller has a deadline
        return all(
            row.offset > records[place][-1][0]
            for place, row in zip(INPUTS, rows, strict=True)
            if records[place]
        )

    def read_all(self) -> None:
        """Read all partitions from the beginning, and sample all offsets."""
        for isolation, consumer in self._consumers.items():
            since = time.monotonic_ns()
            records, ends = _read_to_end(consumer)
            for place in PLACES:
                self.recorder.write(
                    Operation.READ,
                    place=place,
                    isolation=isolation,
                    begin=0,
                    end=ends[place],
                    records=records[place],
                    since=since,
                )
        for place in PLACES:
            self.sample(place)

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()
        self.recorder.close()


def _read_to_end(consumer: Any) -> tuple[dict[Place, list[tuple[int, int]]], dict[Place, int]]:
    """Return the offsets and values of each partition, and its end offset."""
    consumer.assign([TopicPartition(topic, index, 0) for topic, index in PLACES])
    records: dict[Place, list[tuple[int, int]]] = {place: [] for place in PLACES}
    ends: dict[Place, int] = {}
    while len(ends) < len(PLACES):
        for message in consumer.consume(1000, 0.05):
            error = message.error()
            if error is None:
                records[_place(message)].append((message.offset(), _value(message)))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[_place(message)] = message.offset()
    return records, ends


def _write_polls(
    recorder: Recorder, isolation: str, messages: Iterable[Any], positions: dict[Place, int]
) -> None:
    """Record one event per partition with messages, and advance the positions."""
    records: dict[Place, list[tuple[int, int]]] = {}
    for message in messages:
        records.setdefault(_place(message), []).append((message.offset(), _value(message)))
    for place, rows in records.items():
        begin = positions.get(place, rows[0][0])
        positions[place] = end = rows[-1][0] + 1
        fields: dict[str, Any] = {"begin": begin, "end": end, "records": rows}
        recorder.write(Operation.POLL, place=place, isolation=isolation, **fields)


def _place(message: Any) -> Place:
    return message.topic(), message.partition()


def _value(message: Any) -> int:
    return int(message.value().partition(b";")[0])


def _number(name: str) -> int:
    """Return a unique number for a client name."""
    kind, _, number = name.rpartition("-")
    return KINDS_WITH_VALUES.index(kind) * 10 + int(number)


KINDS: dict[str, Callable[..., Any]] = {
    "producer": TransactionalProducer,
    "producer2": SecondProducer,
    "transformer": Transformer,
    "transformer2": SecondTransformer,
    "reader": Reader,
}
KINDS_WITH_VALUES = ("producer", "producer2", "transformer", "transformer2")


def main(name: str, life: str, bootstrap: str, directory: str, seed: str) -> None:
    kind = KINDS[name.partition("-")[0]]
    client = kind(name, int(life), bootstrap, Path(directory), int(seed))
    signal.signal(signal.SIGTERM, client.stop)
    client.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
