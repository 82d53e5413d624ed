"""The kafka-console-producer tool: writes each line of the input as a record."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.cli.output import WrittenLines, say

from .base import Parser, create_if_missing, parse_pairs_or_exit, run, settings_of

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.topics import Partition
    from kbroker.protocol.records import Record

# Names in `--reader-property`, with their defaults.
READER = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
    "null.marker": "",
}
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
LINE_READER = "org.apache.kafka.tools.LineMessageReader"


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser(
        "kafka-console-producer",
        "kbroker topic produce",
        properties=("--command-property", "--producer-property"),
    )
    parser.add_values("--topic", "--request-required-acks", "--line-reader", "--reader-config")
    parser.add_argument("--compression-codec", nargs="?", const="gzip")
    parser.add_argument("--property", "--reader-property", dest="reader", action="append")
    parser.add_flags("--sync")
    parser.add_ignored(
        "--batch-size", "--message-send-max-retries", "--retry-backoff-ms", "--timeout"
    )
    parser.add_ignored("--request-timeout-ms", "--metadata-expiry-ms", "--max-block-ms")
    parser.add_ignored("--max-memory-bytes", "--max-partition-memory-bytes", "--socket-buffer-size")
    options = parser.parse_args(arguments)
    if options.topic is None:
        parser.error("--topic is missing")
    if options.reader_config or options.line_reader not in (None, LINE_READER):
        parser.exit_with_message("custom line readers are not supported, only --reader-property")
    given = parse_pairs_or_exit(options.reader or ())
    if given.keys() - READER.keys():
        parser.exit_with_message(
            f"unknown reader properties: {', '.join(given.keys() - READER.keys())}"
        )
    settings = settings_of(options)
    acks = options.request_required_acks or settings.get("acks", "all")
    codec = options.compression_codec or settings.get("compression.type", "none")
    if acks not in ACKS or codec not in ("none", "gzip", "snappy", "lz4", "zstd"):
        parser.exit_with_message(f"acks {acks} or compression {codec} is not supported")
    job = _Job(options, _line_format(READER | given), ACKS[acks], codec)
    try:
        run(parser, options, job.run, lambda text: say(f"ERROR {text}", err=True), settings)
    except BaseException:
        if not sys.stdin.isatty():
            job.lines.report()
        raise


@dataclass(frozen=True, slots=True)
class _LineFormat:
    """Line format: HEADERS delimiter KEY separator VALUE; headers and key are optional."""

    has_key: bool
    has_headers: bool
    ignores_errors: bool
    key_separator: bytes
    headers_delimiter: bytes
    headers_separator: bytes
    header_separator: bytes
    null: bytes

    def record(self, line: bytes, number: int) -> Record:
        """Parse one line as a record.

        Raises:
            ClientError: A separator is missing.
        """
        from kbroker.protocol.records import Record

        headers, rest = b"", line
        if self.has_headers:
            headers, rest = self._split(line, self.headers_delimiter, "headers", number)
        key, value = None, self._or_null(rest)
        if self.has_key:
            text, rest = self._split(rest, self.key_separator, "key", number)
            key, value = self._or_null(text), self._or_null(rest)
            if not text and self.key_separator not in line:
                key = None
        found = [self._header(each) for each in self._headers(headers)]
        return Record(key, value, time.time_ns() // 1_000_000, found)

    def _split(self, text: bytes, by: bytes, what: str, number: int) -> tuple[bytes, bytes]:
        from kbroker.client.errors import ClientError

        first, separator, rest = text.partition(by)
        if separator:
            return first, rest
        if self.ignores_errors:
            return b"", text
        raise ClientError(f"No {what} separator found on line number {number}: '{text.decode()}'")

    def _headers(self, text: bytes) -> list[bytes]:
        if not text or (self.null and text == self.null):
            return []
        return text.split(self.headers_separator)

    def _header(self, text: bytes) -> tuple[str, bytes | None]:
        name, _, value = text.partition(self.header_separator)
        return name.decode(), self._or_null(value)

    def _or_null(self, text: bytes) -> bytes | None:
        return None if self.null and text == self.null else text


def _line_format(given: Mapping[str, str]) -> _LineFormat:
    """Return the line format for the reader properties."""

    def is_set(name: str) -> bool:
        return given[name].strip().lower() == "true"

    return _LineFormat(
        has_key=is_set("parse.key"),
        has_headers=is_set("parse.headers"),
        ignores_errors=is_set("ignore.error"),
        key_separator=given["key.separator"].encode(),
        headers_delimiter=given["headers.delimiter"].encode(),
        headers_separator=given["headers.separator"].encode(),
        header_separator=given["headers.key.separator"].encode(),
        null=given["null.marker"].encode(),
    )


class _Job:
    """One run of the tool."""

    def __init__(self, options: Namespace, lines: _LineFormat, acks: int, codec: str) -> None:
        self._topic = options.topic
        self._line_format = lines
        self._acks = acks
        self._codec = codec
        self.lines = WrittenLines()

    async def run(self, cluster: ClusterClient) -> None:
        """Write records until the input ends."""
        from kbroker.client.lines import lines_of
        from kbroker.client.producer import ALL_IN_SYNC, Producer, new_identity
        from kbroker.protocol.compression import Codec

        await create_if_missing(cluster, self._topic)
        identity = await new_identity(cluster) if self._acks == ALL_IN_SYNC else None
        codec = Codec[self._codec.upper()]
        producer = Producer(cluster, acks=self._acks, codec=codec, identity=identity)
        self._prompt()
        async with aclosing(lines_of(sys.stdin.buffer)) as chunks:
            async for chunk in chunks:
                placed: dict[Partition, list[Record]] = {}
                for line in chunk:
                    self.lines.read += 1
                    record = self._line_format.record(line.removesuffix(b"\r"), self.lines.read)
                    at = await producer.place(self._topic, record)
                    placed.setdefault(at, []).append(record)
                with self.lines.writing():
                    await producer.write(placed)
                self._prompt()

    def _prompt(self) -> None:
        if sys.stdin.isatty():
            print(">", end="", flush=True)
