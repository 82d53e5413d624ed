"""Benchmark of compaction: `python -m benchmarks.compaction commits 20 40`.

Each argument is a measurement of kbroker on disk:

* `commits`: a million commits of a thousand offsets. Measures the time to compact them, and the load
  time at start-up before and after.
* A number: updates of 1 kB at this rate (MB/s) for half a minute over 50,000 keys, with and without
  compaction. Measures the latency of another producer, and the size that is left to compact.
  `--beside-kafka` does the same with Apache Kafka.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbroker.broker import Broker, open_broker
from kbroker.config import BrokerConfig
from kbroker.coordinator import GroupCoordinator
from kbroker.coordinator.common.records import offset_record
from kbroker.net.server import Listener
from kbroker.protocol.group_metadata import OffsetCommitValue
from kbroker.protocol.records import Record, encode_batch, read_header
from kbroker.protocol.schema import ZERO_UUID

from .brokers import Kafka, Kbroker

COMMITS, OFFSETS = 1_000_000, 1000
# Maximum load time after compaction, in seconds.
LOAD_SECONDS_MAX = 1
SECONDS = 30
KEYS = 50_000
PROBE_SECONDS = 0.005
SEGMENT_BYTES = 64 << 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction")
    parser.add_argument("what", nargs="*", default=["commits", "20"])
    parser.add_argument("--beside-kafka", action="store_true")
    arguments = parser.parse_args()
    brokers: list[type[Kbroker | Kafka]] = [Kbroker, Kafka] if arguments.beside_kafka else [Kbroker]
    for what in arguments.what:
        if what == "commits":
            with tempfile.TemporaryDirectory() as directory:
                load_seconds = trio.run(measure_commits, directory)
            if load_seconds > LOAD_SECONDS_MAX:
                sys.exit(f"loading took more than {LOAD_SECONDS_MAX} s after compaction")
            continue
        for kind in brokers:
            for is_on in (False, True):
                with tempfile.TemporaryDirectory() as directory:
                    measure_updates(kind, Path(directory) / "broker", int(what), compacts=is_on)


# --- committed offsets --------------------------------------------------------------------------


async def measure_commits(directory: str) -> float:
    """Measure commits; return the load time after compaction in seconds."""
    options = {
        "offsets.topic.num.partitions": "1",
        "flush.policy": "os",
        "log.cleaner.enable": "false",
    }
    config = BrokerConfig.load(options=options)
    listeners = [Listener("PLAINTEXT", "127.0.0.1", 0)]
    async with open_broker(config, data_dir=directory, listeners=listeners) as broker:
        await broker.node.groups.create_topic()
        replica = broker.node.partitions.named_replica("__consumer_offsets", 0)
        for number in range(COMMITS):
            value = OffsetCommitValue(
                offset=number,
                leader_epoch=-1,
                metadata="",
                commit_timestamp=broker.node.clock.log_ms(),
                expire_timestamp=-1,
                topic_id=ZERO_UUID,
            )
            record = offset_record(f"group-{number % 50}", "topic", number % OFFSETS, value)
            batch = encode_batch([Record(*GroupCoordinator.serde.encode(record), 0)])
            replica.append(memoryview(batch), read_header(batch), 0)
            if number % 1000 == 0:
                await trio.lowlevel.checkpoint()
        replica.log.roll()
        await broker.node.partitions.flusher.sync_now()
    for name in ("before", "after"):
        async with open_broker(config, data_dir=directory, listeners=listeners) as broker:
            load_seconds = await measure_load(broker, name)
            if name == "before":
                began = time.perf_counter()
                await broker.node.maintenance.cleaner.clean_all()
                print(f"figures: compacted in {time.perf_counter() - began:.1f} s", flush=True)
    return load_seconds


async def measure_load(broker: Broker, name: str) -> float:
    """Load all groups again, as at start-up, and return the time in seconds."""
    broker.node.groups.stop()
    began = time.perf_counter()
    await broker.node.groups.load()
    seconds = time.perf_counter() - began
    size = broker.node.partitions.named_replica("__consumer_offsets", 0).log.segments.size
    print(
        f"figures: {COMMITS:,} commits of {OFFSETS:,} offsets {name} compaction: {size / 1e6:.1f} MB, "
        f"loaded in {seconds:.2f} s",
        flush=True,
    )
    return seconds


# --- updates ------------------------------------------------------------------------------------


def measure_updates(
    kind: type[Kbroker | Kafka], directory: Path, rate: int, *, compacts: bool
) -> None:
    settings = {
        "log.cleaner.backoff.ms": "1000",
        "log.cleaner.enable": str(compacts).lower(),
        "log.segment.bytes": str(SEGMENT_BYTES),
    }
    broker = kind(directory, durable=True, settings=settings)
    try:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        topics = [
            NewTopic("updates", 1, 1, config={"cleanup.policy": "compact"}),
            NewTopic("probe", 1, 1),
        ]
        for created in admin.create_topics(topics, operation_timeout=20).values():
            created.result(20)
        waits, sent_mb = _update(broker.address, rate)
        size = sum(path.stat().st_size for path in directory.glob("data/updates-0/*.log"))
    finally:
        broker.stop()
    cuts = statistics.quantiles(waits, n=1000)
    print(
        f"figures: {broker.name}, {rate} MB/s of 1 kB updates, compaction {'on' if compacts else 'off'}: "
        f"sent {sent_mb / SECONDS:.1f} MB/s; probe p50 {cuts[499] * 1e3:.2f} ms, "
        f"p99 {cuts[989] * 1e3:.2f} ms, p99.9 {cuts[998] * 1e3:.2f} ms; "
        f"{size / 1e6:.0f} MB of {sent_mb:.0f} MB are on disk",
        flush=True,
    )


def _update(bootstrap: str, rate: int) -> tuple[list[float], float]:
    """Update keys at a rate (MB/s); return the latency of each probe in seconds, and the MB sent."""
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    updates = Producer(common | {"linger.ms": 5, "acks": 1})
    probe = Producer(common | {"linger.ms": 0, "acks": "all"})
    waits: list[float] = []
    value = bytes(1000)
    sent = 0
    began = last_probe = time.perf_counter()
    while (now := time.perf_counter()) - began < SECONDS:
        while sent < (now - began) * rate * 1000:
            try:
                updates.produce("updates", key=b"key %d" % (sent * 7919 % KEYS), value=value)
            except BufferError:
                break
            sent += 1
            if sent % 200 == 0:
                break
        updates.poll(0)
        if now - last_probe > PROBE_SECONDS:
            last_probe = now
            probe.produce("probe", b"x", callback=_latency_recorder(waits, now))
        probe.poll(0.0005)
    updates.flush(30)
    probe.flush(30)
    return waits, sent / 1000


def _latency_recorder(waits: list[float], began: float) -> Any:
    """Return a delivery callback that appends the seconds since `began` to `waits`."""
    return lambda error, message: waits.append(time.perf_counter() - began)


if __name__ == "__main__":
    main()
