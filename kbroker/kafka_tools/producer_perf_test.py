"""The kafka-producer-perf-test tool: writes records and measures throughput and latency."""

from __future__ import annotations

import random
import string
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import Parser, create_if_missing, exit_with_message, run, settings_of

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.topics import Partition
    from kbroker.protocol.records import Record

ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
# Maximum size in bytes, and maximum number of records, of one write.
WRITE_BYTES, WRITE_RECORDS = 512 * 1024, 1000
MEGABYTE = 1024 * 1024
PERCENTILES = (50, 95, 99, 99.9)
NO_BOOTSTRAP_SERVER = (
    "At least one of --bootstrap-server, --command-property, --producer-props, --producer.config or "
    "--command-config must be specified."
)


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-producer-perf-test", "kbroker topic produce")
    parser.add_values("--topic", "--payload-file", "--payload-delimiter")
    parser.add_argument("--num-records", type=int)
    parser.add_argument("--record-size", type=int)
    parser.add_argument("--throughput", type=float)
    parser.add_argument("--reporting-interval", type=int, default=5000)
    parser.add_argument(
        *("--producer-props", "--command-property"), dest="properties", nargs="+", action="extend"
    )
    parser.add_flags("--payload-monotonic")
    parser.add_ignored("--print-metrics", flag=True)
    options = parser.parse_args(arguments)
    for name in ("topic", "num_records", "throughput"):
        if getattr(options, name) is None:
            parser.error(f"argument --{name.replace('_', '-')} is required")
    if (options.record_size, options.payload_file) == (
        None,
        None,
    ) and not options.payload_monotonic:
        parser.error(
            "one of the arguments --record-size --payload-file --payload-monotonic is required"
        )
    options.properties = options.properties or []
    settings = settings_of(options)
    options.bootstrap_server = options.bootstrap_server or settings.get("bootstrap.servers")
    if options.bootstrap_server is None:
        parser.error(NO_BOOTSTRAP_SERVER)
    acks, codec = settings.get("acks", "all"), settings.get("compression.type", "none")
    if acks not in ACKS or codec not in ("none", "gzip", "snappy", "lz4", "zstd"):
        parser.exit_with_message(f"acks {acks} or compression {codec} is not supported")
    job = _Job(options, _payloads(options), ACKS[acks], codec)
    run(parser, options, job.run, lambda text: say(text, err=True), settings)


def _payloads(options: Namespace) -> list[bytes]:
    """Return the record values: the parts of a file, or one random value of the requested size."""
    if options.payload_file is None:
        letters = random.choices(string.ascii_uppercase, k=options.record_size or 0)
        return ["".join(letters).encode()]
    try:
        text = Path(options.payload_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        exit_with_message(f"Unable to read file {options.payload_file}")
    delimiter = (options.payload_delimiter or "\\n").encode().decode("unicode_escape")
    parts = [each.encode() for each in text.split(delimiter) if each]
    if not parts:
        exit_with_message(f"{options.payload_file} has no records")
    return parts


@dataclass(slots=True)
class _Report:
    """Records written since `began_at`, and the latency of each record in ms."""

    began_at: float
    sent: int = 0
    sent_bytes: int = 0
    latencies_ms: list[int] = field(default_factory=list)

    def add(self, latencies_ms: Sequence[int], size: int) -> None:
        """Count written records and their latencies."""
        self.sent += len(latencies_ms)
        self.sent_bytes += size
        self.latencies_ms += latencies_ms

    def line(self, now: float, *, is_last: bool) -> str:
        """Return a report line in the form of Kafka's tool: an interim one, or the last one."""
        seconds = max(now - self.began_at, 0.001)
        decimals = (6, 2) if is_last else (1, 1)
        rate = f"{self.sent / seconds:.{decimals[0]}f} records/sec"
        megabytes = f"{self.sent_bytes / MEGABYTE / seconds:.2f} MB/sec"
        mean = sum(self.latencies_ms) / max(self.sent, 1)
        maximum = max(self.latencies_ms, default=0)
        text = (
            f"{self.sent} records sent, {rate} ({megabytes}), {mean:.{decimals[1]}f} ms avg latency, "
            f"{maximum:.{decimals[1]}f} ms max latency"
        )
        if not is_last:
            return f"{text}."
        ordered = sorted(self.latencies_ms) or [0]
        percentiles = ", ".join(
            f"{ordered[min(int(each / 100 * len(ordered)), len(ordered) - 1)]} ms {each:g}th"
            for each in PERCENTILES
        )
        return f"{text}, {percentiles}."


class _Job:
    """One run of the tool."""

    def __init__(
        self, options: Namespace, payloads: Sequence[bytes], acks: int, codec: str
    ) -> None:
        self._options = options
        self._payloads = payloads
        self._acks = acks
        self._codec = codec
        self._created = 0

    async def run(self, cluster: ClusterClient) -> None:
        """Write all records at the requested rate, and print reports."""
        from kbroker.client.producer import ALL_IN_SYNC, Producer, new_identity
        from kbroker.protocol.compression import Codec

        topic, count = self._options.topic, self._options.num_records
        await create_if_missing(cluster, topic)
        identity = await new_identity(cluster) if self._acks == ALL_IN_SYNC else None
        codec = Codec[self._codec.upper()]
        producer = Producer(cluster, acks=self._acks, codec=codec, identity=identity)
        total = _Report(time.monotonic())
        window = _Report(total.began_at)
        while self._created < count:
            due = await self._wait_until_due(total.began_at, count)
            placed: dict[Partition, list[Record]] = {}
            created_at, size = time.monotonic(), 0
            for _ in range(due):
                record = self._record()
                size += len(record.value or b"")
                at = await producer.place(topic, record)
                placed.setdefault(at, []).append(record)
            await producer.write(placed)
            now = time.monotonic()
            latencies_ms = [round((now - created_at) * 1000)] * due
            total.add(latencies_ms, size)
            window.add(latencies_ms, size)
            if (now - window.began_at) * 1000 >= self._options.reporting_interval:
                say(window.line(now, is_last=False))
                window = _Report(now)
        say(total.line(time.monotonic(), is_last=True))

    async def _wait_until_due(self, began_at: float, count: int) -> int:
        """Wait until at least one record is due; return the number of records to write now."""
        import trio

        rate = self._options.throughput
        largest = max(max(map(len, self._payloads)), 1)
        maximum = min(WRITE_RECORDS, max(WRITE_BYTES // largest, 1), count - self._created)
        if rate <= 0:
            return maximum
        wait = began_at + (self._created + 1) / rate - time.monotonic()
        if wait > 0:
            await trio.sleep(wait)
        return max(min(int((time.monotonic() - began_at) * rate) - self._created, maximum), 1)

    def _record(self) -> Record:
        from kbroker.protocol.records import Record

        value = random.choice(self._payloads)
        if self._options.payload_monotonic:
            value = str(self._created).encode()
        self._created += 1
        return Record(None, value, time.time_ns() // 1_000_000)
