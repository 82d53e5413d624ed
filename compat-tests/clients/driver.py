"""Driver of one client library, with verbs as NDJSON on stdin and results on stdout.

The tests are written once. Each client library implements `Client` (see `base.py`) and runs here,
in its own environment and process, so that it can be killed like a real application.

A request is `{"verb": ..., "arguments": {...}}`. The response is `{"result": ...}` or `{"error":
{"code": ..., "type": ..., "message": ...}}`. `code` is Kafka's error code, or null if the error
comes from the client library. Keys and values are encoded as latin-1 strings.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import queue
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from base import Client, Consumer, Row, Transactional

POLL_SECONDS = 0.1


class Member(threading.Thread):
    """A group member that polls in its own thread and executes commands between two polls."""

    def __init__(self, consumer: Consumer, subscription: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer
        self.subscription = subscription
        self.rows: list[Row] = []
        self.events: list[tuple[str, list[list[Any]]]] = []
        self.failure: BaseException | None = None
        self._commands: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._over = False

    def run(self) -> None:
        try:
            self.consumer.subscribe(**self.subscription, on_change=self._changed)
            while not self._over:
                self._execute_commands()
                self.rows += self.consumer.poll(POLL_SECONDS)
        except BaseException as error:  # noqa: BLE001 (raised by the next verb)
            self.failure = error

    def ask(self, command: Callable[[], Any], timeout: float = 30.0) -> Any:
        """Run a command in the member's thread, because client libraries are not thread safe."""
        future: Future[Any] = Future()
        self._commands.put((command, future))
        deadline = time.monotonic() + timeout
        while not future.done() and self.is_alive() and time.monotonic() < deadline:
            wait([future], POLL_SECONDS)
        if not future.done() and self.failure is not None:
            raise self.failure
        return future.result(0)

    def leave(self) -> None:
        """Close the consumer, which leaves the group, and end the thread."""
        self._over = True
        self.join(30)
        self.consumer.close()

    def _execute_commands(self) -> None:
        while not self._commands.empty():
            command, future = self._commands.get()
            try:
                future.set_result(command())
            except BaseException as error:  # noqa: BLE001 (returned to the caller)
                future.set_exception(error)

    def _changed(self, what: str, partitions: list[list[Any]]) -> None:
        self.events.append((what, sorted(partitions)))


class Driver:
    """The verbs. Each `do_` method is a verb, and the test provides its keyword arguments."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.members: dict[str, Member] = {}
        self.producers: dict[str, Transactional] = {}

    # Records

    def do_produce(self, topic: str, records: list[dict[str, Any]], **options: Any) -> Any:
        """Produce records ({key, value, headers, partition, timestamp}).

        Returns:
            The offset or error of each record.
        """
        answers = self.client.produce(topic, [_to_bytes(record) for record in records], **options)
        return self._answers(answers)

    def _answers(self, answers: list[tuple[int, int] | Exception]) -> Any:
        return [
            {"partition": answer[0], "offset": answer[1]}
            if isinstance(answer, tuple)
            else {"error": self._error(answer)}
            for answer in answers
        ]

    def do_read(
        self,
        topic: str,
        start: dict[str, int] | str = "earliest",
        partitions: list[int] | None = None,
        count: int = 1,
        seconds: float = 20.0,
        **options: Any,
    ) -> Any:
        """Read at least `count` records of assigned partitions, from a position for each."""
        consumer = self.client.consumer(**options)
        try:
            known = partitions if partitions is not None else consumer.partitions(topic)
            wanted: dict[int, int | str] = {
                number: start if isinstance(start, str) else start[str(number)] for number in known
            }
            consumer.assign(topic, wanted)
            rows: list[Row] = []
            deadline = time.monotonic() + seconds
            while len(rows) < count and time.monotonic() < deadline:
                rows += consumer.poll(POLL_SECONDS)
            return [_to_text(row) for row in rows]
        finally:
            consumer.close()

    def do_offsets(self, topic: str, at: str | int, **options: Any) -> Any:
        """Return earliest or latest offsets, or the first ones at or after a time in ms."""
        consumer = self.client.consumer(**options)
        try:
            return consumer.offsets(topic, at)
        finally:
            consumer.close()

    def do_committed(self, group: str, topic: str) -> Any:
        """Return the committed offsets of a group, as {partition: offset or null}."""
        consumer = self.client.consumer(group=group)
        try:
            return consumer.committed(topic)
        finally:
            consumer.close()

    def do_commit_as(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        """Commit offsets of a group without being a member."""
        consumer = self.client.consumer(group=group)
        try:
            consumer.assign(topic, {int(number): "earliest" for number in offsets})
            consumer.commit(topic, {int(number): at for number, at in offsets.items()})
        finally:
            consumer.close()

    # Groups

    def do_join(
        self,
        member: str,
        topics: list[str] | None = None,
        pattern: str | None = None,
        **options: Any,
    ) -> None:
        """Start a member that polls until the verb `leave`."""
        consumer = self.client.consumer(**options)
        self.members[member] = Member(consumer, {"topics": topics, "pattern": pattern})
        self.members[member].start()

    def do_state(self, member: str) -> Any:
        """Return a member's assignment, rebalance events, and number of records."""
        state = self.members[member]
        assigned = state.ask(state.consumer.assignment)
        return {"assigned": sorted(assigned), "events": state.events, "count": len(state.rows)}

    def do_rows(self, member: str) -> Any:
        """Return all records that a member has received."""
        return [_to_text(row) for row in self.members[member].rows]

    def do_commit(self, member: str) -> None:
        """Commit all records that a member has received."""
        state = self.members[member]
        state.ask(lambda: state.consumer.commit(None, None))

    def do_leave(self, member: str) -> None:
        """Leave the group and close the member."""
        self.members.pop(member).leave()

    # Transactions

    def do_transactional(
        self, producer: str, identity: str | None, timeout_ms: int = 60_000
    ) -> None:
        """Open a producer with a transactional ID, or an idempotent one."""
        self.producers[producer] = self.client.transactional(identity, timeout_ms)

    def do_begin(self, producer: str) -> None:
        self.producers[producer].begin()

    def do_send(self, producer: str, topic: str, records: list[dict[str, Any]]) -> Any:
        """Produce records in the transaction, and return the offset or error of each."""
        answers = self.producers[producer].send(topic, [_to_bytes(record) for record in records])
        return self._answers(answers)

    def do_end(self, producer: str, commit: bool) -> None:
        """Commit or abort the transaction."""
        self.producers[producer].end(commit)

    def do_close(self, producer: str) -> None:
        self.producers.pop(producer).close()

    def do_transform(
        self, identity: str, group: str, source: str, target: str, count: int, commit: bool
    ) -> None:
        """Consume, transform and produce `count` records in one transaction.

        The values are written to `target` in upper case.
        """
        consumer = self.client.consumer(group=group, isolation="read_committed")
        try:
            consumer.subscribe(topics=[source], pattern=None, on_change=lambda what, where: None)
            rows: list[Row] = []
            while len(rows) < count:
                rows += consumer.poll(POLL_SECONDS)
            positions = {row.partition: row.offset + 1 for row in rows}
            producer = self.client.transactional(identity, 60_000)
            try:
                producer.begin()
                records = [{"value": (_decode(row.value) or "").upper()} for row in rows]
                for answer in producer.send(target, [_to_bytes(record) for record in records]):
                    if isinstance(answer, Exception):
                        raise answer
                producer.send_offsets(consumer, group, source, positions)
                producer.end(commit)
            finally:
                producer.close()
        finally:
            consumer.close()

    # Scripts that crash

    def do_script(
        self,
        topic: str,
        commit: str,
        out: str,
        until: int,
        crash_at: str | None = None,
        **options: Any,
    ) -> int:
        """Append each record to a file, and commit its offset `before` or `after` that.

        Args:
            topic: Topic to read.
            commit: "before" or "after".
            out: Path of the file.
            until: Offset of the last record to process.
            crash_at: Value of the record at which the process dies between the two steps.
            options: Settings of the consumer.

        Returns:
            The number of processed records.
        """
        consumer = self.client.consumer(**options)
        consumer.subscribe(topics=[topic], pattern=None, on_change=lambda what, partitions: None)
        seen = 0
        while True:
            for row in consumer.poll(POLL_SECONDS):
                value = (row.value or b"").decode("latin-1")
                steps = [
                    lambda row=row: consumer.commit(topic, {row.partition: row.offset + 1}),
                    lambda value=value: _append_line(Path(out), value),
                ]
                first, second = steps if commit == "before" else reversed(steps)
                first()
                if value == crash_at:
                    os._exit(9)
                second()
                seen += 1
                if row.offset >= until:
                    consumer.close()
                    return seen

    def do_outside(
        self, topic: str, partition: int, database: str, until: int, crash_at: int | None = None
    ) -> int:
        """Store results and offsets in one SQLite transaction, and no offsets in Kafka."""
        store = sqlite3.connect(database)
        store.execute("create table if not exists results (value text)")
        store.execute("create table if not exists position (next integer)")
        found = store.execute("select max(next) from position").fetchone()[0]
        consumer = self.client.consumer()
        consumer.assign(topic, {partition: found or 0})
        seen = 0
        while True:
            for row in consumer.poll(POLL_SECONDS):
                value = (row.value or b"").decode("latin-1")
                store.execute("insert into results values (?)", (value,))
                if row.offset == crash_at:
                    os._exit(9)
                store.execute("insert into position values (?)", (row.offset + 1,))
                store.commit()
                seen += 1
                if row.offset >= until:
                    consumer.close()
                    return seen

    # Administration

    def do_admin(self, call: str, **arguments: Any) -> Any:
        """Make a call of the admin API, as defined by base.Client."""
        return getattr(self.client, call)(**arguments)

    def serve(self) -> None:
        """Execute requests until stdin ends."""
        for line in sys.stdin:
            request = json.loads(line)
            try:
                verb = getattr(self, "do_" + request["verb"])
                answer = {"result": verb(**request["arguments"])}
            except Exception as error:  # noqa: BLE001 (any exception is a result)
                answer = {"error": self._error(error)}
            print(json.dumps(answer), file=ANSWERS, flush=True)

    def _error(self, error: Exception) -> dict[str, Any]:
        return {
            "code": self.client.error_code(error),
            "type": type(error).__name__,
            "message": str(error),
            "trace": "".join(traceback.format_exception(error)),
        }


def _append_line(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def _to_bytes(record: dict[str, Any]) -> dict[str, Any]:
    headers = record.get("headers")
    return {
        "key": _encode(record.get("key")),
        "value": _encode(record.get("value")),
        "headers": [(name, _encode(value)) for name, value in headers or []],
        "partition": record.get("partition"),
        "timestamp": record.get("timestamp"),
    }


def _to_text(row: Row) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "offset": row.offset,
        "timestamp": row.timestamp,
        "key": _decode(row.key),
        "value": _decode(row.value),
        "headers": [[name, _decode(value)] for name, value in row.headers],
    }


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def _decode(raw: bytes | None) -> str | None:
    return None if raw is None else bytes(raw).decode("latin-1")


def main() -> None:
    """Run the driver: driver.py LIBRARY HOST:PORT."""
    faulthandler.register(signal.SIGUSR1)
    if os.environ.get("KBROKER_COMPAT_DEBUG"):
        logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s: %(message)s")
    library, bootstrap = sys.argv[1:]
    module = __import__(library)
    Driver(module.make(bootstrap)).serve()
    os._exit(0)


# Libraries may print to stdout, so responses use a duplicate of it and prints go to stderr.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

if __name__ == "__main__":
    main()
