"""Effects of config changes at run time, one test per config."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.config import BROKER_PROPERTIES, TOPIC_PROPERTIES, SettingEffect
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.records import BatchHeader, Record, read_header, read_records
from kbroker.storage.log import Log

from ..brokers import started
from ..wire import (
    EARLIEST,
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    list_offset,
    produce,
    request,
    sequenced,
    until,
)

T = Topic("t")
HOUR_MS = 3_600_000
TESTS = Path(__file__).parents[1]


@dataclass
class Trial:
    """A broker with a topic on disk, and requests that change its configs."""

    wire: Wire
    broker: Broker
    directory: Path

    async def set(self, name: str, value: str | None) -> None:
        """Set a topic config; None deletes it."""
        await self._set(ResourceType.TOPIC, T.name, name, value)

    async def set_broker(self, name: str, value: str | None) -> None:
        """Set a broker config; None deletes it."""
        await self._set(ResourceType.BROKER, "1", name, value)

    async def _set(self, kind: int, resource: str, name: str, value: str | None) -> None:
        cls = IncrementalAlterConfigsRequest
        row = cls.Config(name=name, config_operation=0 if value else 1, value=value)
        message = cls(
            resources=[cls.Resource(resource_type=kind, resource_name=resource, configs=[row])]
        )
        response = await self.wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message)
        assert response.responses[0].error_code == 0, response

    async def accepts_connection(self) -> bool:
        """Return True if the broker serves another connection."""
        try:
            async with connected(self.broker.endpoint) as wire:
                return await wire.works()
        except (ConnectionClosed, trio.BrokenResourceError):
            return False

    async def produce(self, records: bytes | None = None, **settings: int) -> int:
        """Produce a batch. Return the error code."""
        row = await produce(self.wire, T, records or batch(), **settings)
        assert isinstance(row.error_code, int)
        return row.error_code

    async def earliest(self) -> int:
        """Apply retention. Return the log start offset."""
        await self.broker.node.maintenance.log_manager_tasks.apply_retention()
        row = await list_offset(self.wire, T, EARLIEST)
        assert isinstance(row.offset, int)
        return row.offset

    def files(self, suffix: str) -> list[Path]:
        return sorted((self.directory / "t-0").glob(f"*.{suffix}"))


def aged(age_ms: int = 0, value: bytes = b"x", key: bytes | None = b"k") -> bytes:
    """Return a batch of one record with a timestamp `age_ms` in the past."""
    return batch([Record(key, value, int(time.time() * 1000) - age_ms)])


EFFECTS: dict[str, Callable[[Trial], Awaitable[None]]] = {}
BROKERS: dict[str, dict[str, Any]] = {}
Test = Callable[[Trial], Awaitable[None]]


def effect_of(name: str, **settings: object) -> Callable[[Test], Test]:
    """Register a function that tests the effect of changing a config, with broker `settings`."""

    def register(function: Test) -> Test:
        EFFECTS[name] = function
        BROKERS[name] = settings
        return function

    return register


@effect_of("cleanup.policy")
async def compacted_topic_rejects_records_without_key(trial: Trial) -> None:
    assert await trial.produce(aged(key=None)) == 0
    await trial.set("cleanup.policy", "compact")
    assert await trial.produce(aged(key=None)) == ErrorCode.INVALID_RECORD
    assert await trial.produce(aged()) == 0
    await trial.set("retention.ms", "1")
    assert await trial.earliest() == 0
    await trial.set("cleanup.policy", "compact,delete")
    assert await trial.earliest() > 0
    await trial.set("cleanup.policy", "delete")
    assert await trial.produce(aged(key=None)) == 0


@effect_of("flush.messages", flush_policy="os")
async def produce_waits_for_fsync_after_flush_messages(trial: Trial) -> None:
    log = trial.broker.node.partitions.named_replica(T.name, 0).log
    assert await trial.produce() == 0
    assert log.synced_offset == 0
    await trial.set("flush.messages", "3")
    for synced in (0, 3, 3, 3, 6):
        assert await trial.produce() == 0
        assert log.synced_offset == synced


@effect_of("flush.ms", flush_policy="os")
async def records_are_fsynced_after_flush_ms(trial: Trial) -> None:
    log = trial.broker.node.partitions.named_replica(T.name, 0).log
    await trial.set("flush.ms", str(HOUR_MS))
    assert await trial.produce() == 0
    await trio.sleep(0.05)
    assert log.synced_offset == 0
    await trial.set("flush.ms", "10")
    assert await trial.produce() == 0
    await until(lambda: log.synced_offset == 2)


@effect_of("index.interval.bytes")
async def index_gets_one_entry_per_interval(trial: Trial) -> None:
    """The change applies from the next segment on."""
    log = trial.broker.node.partitions.named_replica(T.name, 0).log
    for _ in range(2):
        for _ in range(5):
            assert await trial.produce() == 0
        await trial.set("index.interval.bytes", "1")
        log.roll()
    await trial.broker.node.maintenance.log_manager_tasks.checkpoint()
    sparse, dense = (file.stat().st_size for file in trial.files("index")[:2])
    assert sparse < dense


@effect_of("internal.segment.bytes")
async def segments_have_configured_size(trial: Trial) -> None:
    await _rolls_between(trial, "internal.segment.bytes", "100")


@effect_of("max.message.bytes")
async def too_large_batches_are_rejected(trial: Trial) -> None:
    assert await trial.produce() == 0
    await trial.set("max.message.bytes", "20")
    assert await trial.produce() == ErrorCode.MESSAGE_TOO_LARGE
    await trial.set("max.message.bytes", None)
    assert await trial.produce() == 0


@effect_of("message.timestamp.after.max.ms")
async def future_timestamps_are_rejected(trial: Trial) -> None:
    assert await trial.produce(aged(-HOUR_MS // 2)) == 0
    await trial.set("message.timestamp.after.max.ms", "60000")
    assert await trial.produce(aged(-HOUR_MS // 2)) == ErrorCode.INVALID_TIMESTAMP
    assert await trial.produce(aged()) == 0


@effect_of("message.timestamp.before.max.ms")
async def past_timestamps_are_rejected(trial: Trial) -> None:
    assert await trial.produce(aged(HOUR_MS)) == 0
    await trial.set("message.timestamp.before.max.ms", "60000")
    assert await trial.produce(aged(HOUR_MS)) == ErrorCode.INVALID_TIMESTAMP
    assert await trial.produce(aged()) == 0


@effect_of("message.timestamp.type")
async def records_get_log_append_time(trial: Trial) -> None:
    row = await produce(trial.wire, T, aged(HOUR_MS))
    assert row.log_append_time_ms == -1
    await trial.set("message.timestamp.type", "LogAppendTime")
    row = await produce(trial.wire, T, aged(HOUR_MS))
    assert row.log_append_time_ms > (time.time() - 60) * 1000
    await trial.set("message.timestamp.type", "CreateTime")
    assert (await produce(trial.wire, T, aged(HOUR_MS))).log_append_time_ms == -1


@effect_of("min.insync.replicas")
async def too_small_isr_rejects_acks_all(trial: Trial) -> None:
    """One of two replicas is in sync. A partition with a single replica always accepts writes."""
    replica = trial.broker.node.partitions.named_replica(T.name, 0)
    behind = replace(replica.partition, replicas=[1, 2], isr=[1])
    replica.update_partition(behind)
    assert await trial.produce() == 0
    await trial.set("min.insync.replicas", "2")
    replica.update_partition(behind)
    assert await trial.produce() == ErrorCode.NOT_ENOUGH_REPLICAS
    assert await trial.produce(acks=1) == 0


@effect_of("retention.bytes")
async def retention_deletes_segments_by_size(trial: Trial) -> None:
    await trial.set("internal.segment.bytes", "100")
    for _ in range(3):
        assert await trial.produce() == 0
    assert await trial.earliest() == 0
    await trial.set("retention.bytes", "1")
    assert await trial.earliest() == 2


@effect_of("retention.ms")
async def retention_deletes_segments_by_age(trial: Trial) -> None:
    assert await trial.produce(aged(HOUR_MS)) == 0
    assert await trial.earliest() == 0
    await trial.set("retention.ms", "60000")
    assert await trial.earliest() == 1
    assert (await fetch(trial.wire, T)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@effect_of("segment.bytes")
async def log_rolls_segment_at_size(trial: Trial) -> None:
    await _rolls_between(trial, "segment.bytes", "1048576", b"x" * 600_000)


@effect_of("segment.index.bytes")
async def log_rolls_segment_when_index_is_full(trial: Trial) -> None:
    """The change applies from the next segment on."""
    log = trial.broker.node.partitions.named_replica(T.name, 0).log
    await trial.set("index.interval.bytes", "1")
    for size, files in (("10485760", 1), ("16", 3)):
        await trial.set("segment.index.bytes", size)
        log.roll()
        before = len(trial.files("log"))
        for _ in range(6):
            assert await trial.produce() == 0
        assert len(trial.files("log")) - before == files - 1


@effect_of("segment.ms")
async def log_rolls_segment_after_time(trial: Trial) -> None:
    for age_ms in (HOUR_MS, HOUR_MS // 2):
        assert await trial.produce(aged(age_ms)) == 0
    assert len(trial.files("log")) == 1
    await trial.set("segment.ms", "60000")
    assert await trial.produce(aged()) == 0
    assert len(trial.files("log")) == 2


@effect_of("segment.jitter.ms")
async def log_rolls_segment_with_random_jitter(trial: Trial) -> None:
    """The test fails once in 60,000 runs: if the jitter is less than one minute of 1,000 hours."""
    await trial.set("segment.ms", str(1000 * HOUR_MS))
    for age_ms in (1000 * HOUR_MS, 60_000):
        assert await trial.produce(aged(age_ms)) == 0
    assert len(trial.files("log")) == 1
    await trial.set("segment.jitter.ms", str(2**62))
    assert await trial.produce(aged(60_000)) == 0
    assert len(trial.files("log")) == 2


async def _rolls_between(trial: Trial, name: str, value: str, content: bytes = b"x") -> None:
    for _ in range(2):
        assert await trial.produce(aged(value=content)) == 0
    assert len(trial.files("log")) == 1
    await trial.set(name, value)
    for _ in range(2):
        assert await trial.produce(aged(value=content)) == 0
    assert len(trial.files("log")) > 1


@effect_of("compression.type")
async def batches_get_compression_type_of_topic(trial: Trial) -> None:
    stored = []
    for value in ("producer", "gzip", "uncompressed", "zstd"):
        await trial.set("compression.type", value)
        assert await trial.produce(batch([b"x" * 1000] * 10, codec=Codec.LZ4)) == 0
        stored.append((await _last_batch(trial)).codec)
    assert stored == [Codec.LZ4, Codec.GZIP, Codec.NONE, Codec.ZSTD]


@effect_of("max.decompressed.message.bytes")
async def large_records_are_rejected_when_compressed(trial: Trial) -> None:
    large = batch([b"x" * 1000], codec=Codec.LZ4)
    for value, code in (("1100", ErrorCode.NONE), ("900", ErrorCode.INVALID_RECORD)):
        await trial.set("max.decompressed.message.bytes", value)
        assert await trial.produce(large) == code
        row = await list_offset(trial.wire, T, 1, 7)
        assert row.error_code == code


@effect_of("compression.gzip.level")
async def gzip_level_reduces_size(trial: Trial) -> None:
    await _levels_differ(trial, "gzip", "1", "9")


@effect_of("compression.lz4.level")
async def lz4_level_reduces_size(trial: Trial) -> None:
    await _levels_differ(trial, "lz4", "9", "17")


@effect_of("compression.zstd.level")
async def zstd_level_reduces_size(trial: Trial) -> None:
    await _levels_differ(trial, "zstd", "-5", "19")


async def _levels_differ(trial: Trial, codec: str, low: str, high: str) -> None:
    await trial.set("compression.type", codec)
    numbers = range(5000)
    text = b"".join(b"key %d value %d of %d;" % (n % 97, n, n * n % 1009) for n in numbers)
    sizes = []
    for level in (low, high):
        await trial.set(f"compression.{codec}.level", level)
        assert await trial.produce(batch([text])) == 0
        sizes.append((await _last_batch(trial)).size)
    assert sizes[0] > sizes[1]


async def _last_batch(trial: Trial) -> BatchHeader:
    end = trial.broker.node.partitions.named_replica(T.name, 0).log.log_end_offset
    row = await fetch(trial.wire, T, end - 1)
    return read_header(row.records)


# -- compaction


async def _compacted_topic(trial: Trial, versions: int = 3) -> Log:
    """Create a compacted topic with values of one key, each in its own closed segment."""
    await trial.set("cleanup.policy", "compact")
    await trial.set("internal.segment.bytes", "100")
    for number in range(versions + 1):
        assert await trial.produce(aged(value=b"%d" % number)) == 0
    return trial.broker.node.partitions.named_replica(T.name, 0).log


async def _is_compacted(trial: Trial) -> bool:
    return await trial.broker.node.maintenance.cleaner.clean_all() > 0


@effect_of("min.cleanable.dirty.ratio")
async def compaction_waits_for_min_cleanable_ratio(trial: Trial) -> None:
    await _compacted_topic(trial)
    await trial.set("min.cleanable.dirty.ratio", "1")
    assert not await _is_compacted(trial)
    await trial.set("min.cleanable.dirty.ratio", "0.9")
    assert await _is_compacted(trial)


@effect_of("min.compaction.lag.ms")
async def compaction_waits_for_min_lag(trial: Trial) -> None:
    await _compacted_topic(trial)
    await trial.set("min.compaction.lag.ms", str(HOUR_MS))
    assert not await _is_compacted(trial)
    await trial.set("min.compaction.lag.ms", None)
    assert await _is_compacted(trial)


@effect_of("max.compaction.lag.ms")
async def compaction_runs_after_max_lag(trial: Trial) -> None:
    await _compacted_topic(trial)
    await trial.set("min.cleanable.dirty.ratio", "1")
    assert not await _is_compacted(trial)
    await trial.set("max.compaction.lag.ms", "1")
    await trio.sleep(0.01)
    assert await _is_compacted(trial)


@effect_of("delete.retention.ms")
async def compaction_removes_old_tombstones(trial: Trial) -> None:
    """The change applies to tombstones that are compacted later."""
    log = await _compacted_topic(trial)
    tombstone = batch([Record(b"k", None, int(time.time() * 1000))])
    for retention, left in (("3600000", True), ("1", False)):
        await trial.set("delete.retention.ms", retention)
        for records in (tombstone, aged(key=b"other"), aged(key=b"other")):
            assert await trial.produce(records) == 0
        assert await _is_compacted(trial)
        await trio.sleep(0.01)
        for _ in range(2):
            assert await trial.produce(aged(key=b"other")) == 0
        await trial.broker.node.maintenance.cleaner.clean_all()
        row = await fetch(trial.wire, T, log.log_start_offset)
        found = [record.key for record in read_records(row.records)]
        assert (b"k" in found) is left


# -- broker configs


@effect_of("log.cleaner.backoff.ms")
async def cleaner_runs_at_configured_interval(trial: Trial) -> None:
    log = await _compacted_topic(trial)
    await trial.set_broker("log.cleaner.backoff.ms", "1")
    await until(lambda: log.first_dirty_offset > 0)


@effect_of("log.cleaner.dedupe.buffer.size")
async def smaller_dedupe_buffer_needs_more_runs(trial: Trial) -> None:
    await trial.set("min.cleanable.dirty.ratio", "0")
    for size, runs in (("1600", 2), (None, 1)):
        await trial.set_broker("log.cleaner.dedupe.buffer.size", size)
        await trial.set("cleanup.policy", "compact")
        log = trial.broker.node.partitions.named_replica(T.name, 0).log
        for number in range(15):
            assert await trial.produce(aged(key=b"%d" % number)) == 0
        log.roll()
        await trial.broker.node.partitions.flusher.sync_now()
        assert await trial.broker.node.maintenance.cleaner.clean_all() == runs


@effect_of("log.scrub.bytes.per.second")
async def scrub_reads_at_configured_rate(trial: Trial) -> None:
    log = await _compacted_topic(trial)
    await trial.set(
        "min.compaction.lag.ms", str(HOUR_MS)
    )  # so that compaction does not change the records
    scrub = trial.broker.node.maintenance.scrubber.scrub_all
    await trial.set_broker("log.scrub.bytes.per.second", "0")
    assert await scrub() == 0
    await trial.set_broker("log.scrub.bytes.per.second", "10000")
    began = time.perf_counter()
    size = await scrub()
    assert size == sum(segment.size for segment, _ in log.segments.closed_segments())
    assert time.perf_counter() - began >= size / 10_000


@effect_of("log.scrub.interval.ms")
async def scrub_runs_at_configured_interval(trial: Trial) -> None:
    log = await _compacted_topic(trial)
    _flip_last_bit(Path(log.segments[0].log_path))
    await trio.sleep(0.1)
    assert log.offline is None
    await trial.set_broker("log.scrub.interval.ms", "1")
    await until(lambda: log.offline is not None)


def _flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@effect_of("max.connections")
async def connections_above_max_connections_are_rejected(trial: Trial) -> None:
    for value, accepted in (("1", False), ("2", True), ("1", False), (None, True)):
        await trial.set_broker("max.connections", value)
        assert await trial.accepts_connection() is accepted


@effect_of("max.connection.creation.rate")
async def connections_above_creation_rate_wait(trial: Trial) -> None:
    """The connections of one second are accepted at once."""
    assert all([await trial.accepts_connection() for _ in range(5)])
    await trial.set_broker("max.connection.creation.rate", "1")
    served = 0
    with trio.move_on_after(0.3):
        while await trial.accepts_connection():
            served += 1
    assert served <= 2


@effect_of("max.connections.per.ip")
async def connections_above_limit_per_ip_are_rejected(trial: Trial) -> None:
    for value, accepted in (("1", False), ("2", True), ("1", False), (None, True)):
        await trial.set_broker("max.connections.per.ip", value)
        assert await trial.accepts_connection() is accepted


@effect_of("max.connections.per.ip.overrides")
async def limit_overrides_apply_to_single_ips(trial: Trial) -> None:
    for value, accepted in (("127.0.0.1:1", False), ("127.0.0.2:1", True), (None, True)):
        await trial.set_broker("max.connections.per.ip.overrides", value)
        assert await trial.accepts_connection() is accepted


@effect_of("request.max.elements")
async def requests_with_too_many_rows_are_rejected(trial: Trial) -> None:
    message = request(ApiKey.DESCRIBE_GROUPS, groups=[f"a group of {i:30}" for i in range(2000)])
    for value, served in ((None, True), ("1000", False), ("2000", True)):
        await trial.set_broker("request.max.elements", value)
        async with connected(trial.broker.endpoint) as wire:
            await wire.send(ApiKey.DESCRIBE_GROUPS, 5, message)
            if served:
                assert len((await wire.receive()).groups) == 2000
            else:
                assert await wire.wait_closed() == b""


@effect_of("producer.id.expiration.ms")
async def batch_is_appended_again_after_producer_state_expired(trial: Trial) -> None:
    message = request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=1000)
    producer_id = (await trial.wire.ask(ApiKey.INIT_PRODUCER_ID, 4, message)).producer_id
    records = sequenced(producer_id, 0)
    offsets = [(await produce(trial.wire, T, records)).base_offset for _ in range(2)]
    assert offsets == [0, 0], "the second batch is a duplicate"
    await trial.set_broker("producer.id.expiration.ms", "1")
    await trio.sleep(0.01)
    await trial.broker.node.maintenance.log_manager_tasks.apply_retention()
    assert (await produce(trial.wire, T, records)).base_offset == 1


@effect_of("transaction.partition.verification.enable")
async def transaction_verification_can_be_disabled(trial: Trial) -> None:
    find = request(ApiKey.FIND_COORDINATOR, key="tx", key_type=1)
    await trial.wire.ask(ApiKey.FIND_COORDINATOR, 3, find)
    message = request(ApiKey.INIT_PRODUCER_ID, transactional_id="tx", transaction_timeout_ms=60_000)
    records = (await trial.wire.ask(ApiKey.INIT_PRODUCER_ID, 4, message)).producer_id
    part = sequenced(records, 0, transactional=True)
    for value, code in ((None, ErrorCode.INVALID_TXN_STATE), ("false", ErrorCode.NONE)):
        await trial.set_broker("transaction.partition.verification.enable", value)
        row = await produce(trial.wire, T, part, 9, transactional_id="tx")
        assert row.error_code == code


@pytest.mark.slow
@pytest.mark.parametrize("name", EFFECTS)
async def test_config_change_has_its_effect(name: str, tmp_path: Path) -> None:
    async with (
        started(tmp_path, **BROKERS[name]) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, T.name)
        await EFFECTS[name](Trial(wire, broker, tmp_path))


def texts_of_other_tests() -> Iterator[str]:
    """Yield the source of the other test modules that may test the effect of a config.

    Tests of config tables and of config requests are excluded: they name every config.
    """
    excluded = {Path(__file__), *(TESTS / "config").glob("test_*.py")}
    excluded |= {TESTS / "handlers/test_configs.py", TESTS / "handlers/test_configs_alter.py"}
    for path in TESTS.rglob("test_*.py"):
        if path not in excluded:
            yield path.read_text()


def test_every_dynamic_config_has_an_effect_test() -> None:
    """Each config has a function in this module, or another test module names it.

    Broker configs that are the default of a topic config need no test of their own.
    """
    topic_defaults = {name for each in TOPIC_PROPERTIES.values() for name in each.synonyms}
    of_brokers = [each for each in BROKER_PROPERTIES.values() if each.dynamic]
    every = [
        *TOPIC_PROPERTIES.values(),
        *(each for each in of_brokers if each.name not in topic_defaults),
    ]
    applied = {each.name for each in every if each.effect is SettingEffect.APPLIED}
    assert EFFECTS.keys() <= applied
    others = "".join(texts_of_other_tests())
    assert [name for name in sorted(applied - EFFECTS.keys()) if f'"{name}"' not in others] == []


async def test_partitions_of_topic_share_config_object(tmp_path: Path) -> None:
    """With thousands of partitions, separate objects would take more time and memory."""
    async with started(tmp_path) as broker:
        cluster, partitions = broker.node.cluster, broker.node.partitions
        topic = await cluster.create_topic("t", [[1]] * 3, {}, cause="test")
        replicas = [partitions.named_replica("t", index) for index in range(2)]
        assert replicas[0].config is replicas[1].config
        assert replicas[0].log.config is replicas[1].log.config
        assert await cluster.alter_topic_configs(topic, {"segment.ms": "5000"}, cause="test")
        replicas.append(partitions.named_replica("t", 2))
        assert [each.log.config.segment_ms for each in replicas] == [5000] * 3
