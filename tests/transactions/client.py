"""Clients that are processes of their own, so that they can be killed: producers, transformers of
the bank, and a reader. Each writes down what it does.

Usage: python -m tests.transactions.client NAME LIFE PORT DIRECTORY SEED; the name begins with the kind.
SIGTERM ends a client after its transaction. It exits with `FATAL` when the broker does not want it
any more, which is what becomes of one that was replaced, or when it hangs.
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
PAUSE_SECONDS_MAX = 0.004
"""Between two steps of a transaction: some of them are open when something happens."""
LONG_PAUSE = 5
"""How many pauses there are before an end."""
CALL_SECONDS = 2.0
HANG_SECONDS = 2 * CALL_SECONDS
SETTLE_SECONDS = 5.0
TIMEOUT_MS, BRIEF_TIMEOUT_MS = 60_000, 1_500
BRIEF = ("producer-1", "producer2-0")
"""Clients whose transactions are aborted when they sleep for a while."""
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
    """The transaction has failed and is to be aborted."""


class Client:
    """What all kinds of clients have."""

    def __init__(self, name: str, life: int, bootstrap: str, directory: Path, seed: int) -> None:
        self.name = name
        self.process = f"{name}.{life}"
        self.recorder = Recorder(directory / f"{self.process}.jsonl", self.process)
        self.random = random.Random(f"{seed} {self.process}")
        self.stopping = False
        self.settings: dict[str, Any] = {"bootstrap.servers": bootstrap, **_COMMON}

    def stop(self, *_: object) -> None:
        """Come to an end soon."""
        self.stopping = True

    def pause(self, times: int = 1) -> None:
        time.sleep(self.random.uniform(0, times * PAUSE_SECONDS_MAX))


class Transactional(Client):
    """A client with transactions; the first thing that it does is to take over its id."""

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
        """Send the next value; the answer comes by and by. Raises MustAbort."""
        value = next(self._values)
        fields: dict[str, Any] = {"transaction": self.transaction, "value": value, "place": place}

        def answered(error: KafkaError | None, message: Any) -> None:
            self._unanswered -= 1
            if error is None:
                self.recorder.write(Operation.SEND, offset=message.offset(), **fields)
                return
            self.recorder.write(Operation.SEND, Phase.UNKNOWN, error=error.name(), **fields)

        self.recorder.write(Operation.SEND, Phase.INVOKED, source=source, **fields)
        data = b"%d;%d" % (value, source)
        topic, index = place
        self._repeat(
            lambda: self._producer.produce(topic, data, partition=index, on_delivery=answered)
        )
        self._unanswered += 1
        self._take_answers(0)

    def send_offsets(self, offsets: dict[Place, int], member: Any) -> None:
        """Carry the offsets in the transaction. Raises MustAbort."""
        rows = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
        claims: list[dict[str, Any]] = [
            {"transaction": self.transaction, "group": GROUP, "place": place, "offset": at}
            for place, at in offsets.items()
        ]
        for claim in claims:
            self.recorder.write(Operation.OFFSETS, Phase.INVOKED, **claim)
        # librdkafka #5456: when the broker dies now, the call does not return.
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
        """Commit or abort; returns whether it is committed."""
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
        """Wait until all records are answered: librdkafka aborts too early otherwise.

        An abort that overtakes the first record is fatal (librdkafka #4849). A record that was sent
        and is to be sent again is dropped, and the next one gets its sequence number: the broker
        takes that for the same record, and it is lost.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._unanswered:
            self._take_answers(0.01)
            if time.monotonic() > deadline:
                self._leave("records are not answered")

    def _take_answers(self, seconds: float) -> None:
        """Hear what became of records. librdkafka says here, too, that the producer was fenced."""
        try:
            self._producer.poll(seconds)
        except KafkaException as failed:
            self._leave(failed.args[0])

    def _call(self, operation: Operation, call: Callable[[], object], **fields: Any) -> None:
        """Ask until there is an answer. Raises MustAbort when the transaction has failed."""
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
                    self._leave(error)

    def _leave(self, error: object) -> NoReturn:
        """End at once: what the producer does when it is closed would be no part of the history."""
        print(f"{self.process}: {error}", file=sys.stderr, flush=True)
        os._exit(FATAL)


class TransactionalProducer(Transactional):
    """Transactions of some records for all topics but the output; some of them are aborted."""

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
    """A member of the group: one output for each input, with the offsets in the transaction."""

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
        # Later it could be that of a generation in which these partitions are another member's.
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
        """Fill the batch. A rebalance meanwhile empties it."""
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
            self._go_back()

    def _go_back(self) -> None:
        """Read again what was not committed."""
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
    """The second protocol (KIP-890) in place of librdkafka's."""

    def _open_producer(self, bootstrap: str) -> Any:
        return SecondProtocolProducer(bootstrap, self.name, self.timeout_ms)


class SecondProducer(SecondProtocol, TransactionalProducer):
    """A producer of the second protocol."""


class SecondTransformer(SecondProtocol, Transformer):
    """A transformer of the second protocol."""


class Reader(Client):
    """Two consumers, one of them of committed records only, and looks at all kinds of offsets."""

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
                time.sleep(0.02)  # there is no broker

    def sample(self, place: Place) -> None:
        """Look at the offsets of a place. Raises KafkaException when nobody answers."""
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
        """Whether the group is known to be past the last committed record of each input."""
        records, _ = _read_to_end(self._consumers[READ_COMMITTED])
        partitions = [TopicPartition(*place) for place in INPUTS]
        try:
            rows = self._consumers[READ_COMMITTED].committed(partitions, CALL_SECONDS)
        except KafkaException:
            return False  # nobody answers in time; who waits for this knows how long that may go on
        return all(
            row.offset > records[place][-1][0]
            for place, row in zip(INPUTS, rows, strict=True)
            if records[place]
        )

    def read_all(self) -> None:
        """Read everything from the beginning, and look at all offsets."""
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
    """Offsets and values of each place from its beginning, and where it ended."""
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
    """One event for each place that something came from; positions are moved on."""
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
    """A number of its own for each name that ends with a number."""
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
