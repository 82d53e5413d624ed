"""The kafka-console-consumer tool: prints the records of topics."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import (
    INTERRUPTED,
    Parser,
    create_if_missing,
    match_names,
    parse_pairs_or_exit,
    run,
    settings_of,
    topic_names,
)

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.consumer import ReadBatch
    from kbroker.client.offset_spec import OffsetSpec
    from kbroker.client.topics import Partition
    from kbroker.protocol.records import Record

# Names in `--formatter-property`, with their defaults.
FORMATTER = {
    "print.timestamp": "false",
    "print.key": "false",
    "print.offset": "false",
    "print.partition": "false",
    "print.headers": "false",
    "print.epoch": "false",
    "print.delivery": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
    "key.deserializer": "",
    "value.deserializer": "",
}
TEXT = ("", "org.apache.kafka.common.serialization.StringDeserializer")
DEFAULT, NOTHING = "DefaultMessageFormatter", "NoOpMessageFormatter"
CHECK_SECONDS = 0.05


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser(
        "kafka-console-consumer",
        "kbroker topic consume",
        properties=("--command-property", "--consumer-property"),
    )
    parser.add_values("--topic", "--include", "--whitelist", "--offset", "--group", "--formatter")
    parser.add_values("--formatter-config", "--key-deserializer", "--value-deserializer")
    parser.add_argument("--partition", type=int)
    parser.add_argument("--max-messages", type=int, default=-1)
    parser.add_argument("--timeout-ms", type=int)
    parser.add_argument("--property", "--formatter-property", dest="formats", action="append")
    parser.add_argument(
        "--isolation-level", choices=("read_committed", "read_uncommitted"), default=None
    )
    parser.add_flags("--from-beginning")
    parser.add_ignored("--skip-message-on-error", "--enable-systest-events", flag=True)
    options = parser.parse_args(arguments)
    properties = FORMATTER | parse_pairs_or_exit(options.formats or ())
    _check(parser, options, properties)
    settings = settings_of(options)
    job = _Job(options, settings, properties)
    try:
        run(parser, options, job.run, lambda text: say(f"ERROR {text}", err=True), settings)
    finally:
        say(f"Processed a total of {job.count} messages", err=True)
    if job.ended_by:
        sys.exit(INTERRUPTED)


def _check(parser: Parser, options: Namespace, properties: dict[str, str]) -> None:
    options.include = options.include or options.whitelist
    if (options.topic is None) == (options.include is None):
        parser.error("give either --topic or --include")
    if options.partition is not None and (options.topic is None or options.group is not None):
        parser.error("--partition needs --topic, and excludes --group")
    if options.offset is not None and (options.partition is None or options.from_beginning):
        parser.error("--offset needs --partition, and excludes --from-beginning")
    if options.offset not in (None, "earliest", "latest") and not options.offset.isdecimal():
        parser.error("--offset must be earliest, latest or a number")
    formatter = (options.formatter or DEFAULT).rpartition(".")[2]
    if formatter not in (DEFAULT, NOTHING) or options.formatter_config:
        parser.exit_with_message(
            f"formatter {options.formatter or options.formatter_config} is not supported"
        )
    unknown = properties.keys() - FORMATTER.keys()
    if unknown:
        parser.exit_with_message(f"unknown formatter properties: {', '.join(sorted(unknown))}")
    kinds = (options.key_deserializer, options.value_deserializer)
    for kind in (*kinds, properties["key.deserializer"], properties["value.deserializer"]):
        if kind and kind not in TEXT:
            parser.exit_with_message(
                f"deserializer {kind} is not supported; records are printed as bytes"
            )
    options.is_silent = formatter == NOTHING


class _Job:
    """One run of the tool."""

    def __init__(
        self, options: Namespace, settings: dict[str, str], properties: dict[str, str]
    ) -> None:
        self._options = options
        self._committed = (
            options.isolation_level or settings.get("isolation.level")
        ) == "read_committed"
        self._group = options.group or settings.get("group.id")
        self._first = options.from_beginning or settings.get("auto.offset.reset") == "earliest"
        self._line = partial(_line, properties)
        self._read_at = time.monotonic()
        self.count = 0
        self.ended_by = 0

    async def run(self, cluster: ClusterClient) -> None:
        """Print records until the requested count or the timeout is reached."""
        import trio

        if self._options.topic is not None:
            await create_if_missing(cluster, self._options.topic)
        async with trio.open_nursery() as nursery:
            end = nursery.cancel_scope.cancel
            if self._options.timeout_ms is not None:
                nursery.start_soon(self._watch, self._options.timeout_ms / 1000, end)
            await (self._read(cluster) if self._group is None else self._read_as_member(cluster))
            end()

    async def _watch(self, seconds: float, end: Callable[[], None]) -> None:
        import trio

        self._read_at = time.monotonic()
        while time.monotonic() - self._read_at < seconds:  # noqa: ASYNC110 - records are printed in a thread
            await trio.sleep(CHECK_SECONDS)
        say(
            "ERROR Error processing message, terminating consumer process: ",
            "org.apache.kafka.common.errors.TimeoutException",
            err=True,
        )
        end()

    async def _read(self, cluster: ClusterClient) -> None:
        from kbroker.client.consumer import FOREVER, reading_records
        from kbroker.client.offset_spec import find

        partitions = await self._partitions(cluster)
        starts = await find(cluster, partitions, self._offset_spec(), committed=self._committed)
        ranges = {one: (starts[one], FOREVER) for one in partitions}
        async with reading_records(cluster, ranges, committed=self._committed) as channel:
            async for found in channel:
                self._print(found)
                if self._is_count_reached():
                    return

    async def _read_as_member(self, cluster: ClusterClient) -> None:
        import trio

        from kbroker.cli.consume_member import MemberReader, end_on_signal
        from kbroker.client.member import open_member

        assert self._group is not None
        topics = sorted({topic for topic, _ in await self._partitions(cluster)})

        def on_signal(number: int) -> None:
            self.ended_by = number

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_on_signal, nursery.cancel_scope, on_signal)
            async with open_member(cluster, self._group, topics) as member:
                reader = MemberReader(
                    cluster,
                    self._group,
                    member,
                    self._print,
                    self._is_count_reached,
                    self._offset_spec(),
                    None,
                    committed=self._committed,
                    control=False,
                )
                await reader.run()
            nursery.cancel_scope.cancel()

    def _offset_spec(self) -> OffsetSpec:
        from kbroker.client.offset_spec import END, START, Kind, OffsetSpec

        offset = self._options.offset
        if offset is not None and offset.isdecimal():
            return OffsetSpec(Kind.OFFSET, int(offset))
        return START if self._first or offset == "earliest" else END

    async def _partitions(self, cluster: ClusterClient) -> list[Partition]:
        from kbroker.client.topic_details import choose_partitions

        names = [self._options.topic]
        if self._options.include is not None:
            names = match_names(self._options.include, await topic_names(cluster, internal=False))
        partitions = () if self._options.partition is None else (self._options.partition,)
        chosen = [await choose_partitions(cluster, name, partitions) for name in names]
        return [one for part in chosen for one in part]

    def _is_count_reached(self) -> bool:
        return self.count == int(self._options.max_messages)

    def _print(self, found: Sequence[ReadBatch]) -> Sequence[ReadBatch]:
        """Print the requested records; return the processed records."""
        out = sys.stdout.buffer
        self._read_at = time.monotonic()
        processed = []
        for batch in found:
            left = int(self._options.max_messages) - self.count
            if 0 <= left < len(batch.records):
                batch = batch.take(range(left))
            if not batch.records:
                break
            if not self._options.is_silent:
                out.write(b"".join([self._line(batch, record) for record in batch.records]))
            self.count += len(batch.records)
            processed.append(batch)
        out.flush()
        return processed


def _line(properties: dict[str, str], batch: ReadBatch, record: Record) -> bytes:
    """Return a record in the form of Kafka's default formatter."""
    null = properties["null.literal"].encode()

    def is_printed(name: str) -> bool:
        return properties[f"print.{name}"].strip().lower() == "true"

    parts = []
    if is_printed("timestamp"):
        kind = "LogAppendTime" if batch.batch.is_log_append_time else "CreateTime"
        parts.append(f"{kind}:{record.timestamp}".encode())
    if is_printed("partition"):
        parts.append(f"Partition:{batch.partition[1]}".encode())
    if is_printed("offset"):
        parts.append(f"Offset:{record.offset}".encode())
    parts += [
        f"{name.capitalize()}:NOT_PRESENT".encode()
        for name in ("delivery", "epoch")
        if is_printed(name)
    ]
    if is_printed("headers"):
        by = properties["headers.separator"].encode()
        headers = [
            f"{key}:".encode() + (null if value is None else value) for key, value in record.headers
        ]
        parts.append(by.join(headers) if headers else b"NO_HEADERS")
    if is_printed("key"):
        parts.append(null if record.key is None else record.key)
    if is_printed("value"):
        parts.append(null if record.value is None else record.value)
    return properties["key.separator"].encode().join(parts) + properties["line.separator"].encode()
