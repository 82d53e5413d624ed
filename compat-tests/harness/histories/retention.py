"""Retention by time and size, segments that roll by time, and offsets by time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from harness.admin_calls import of, request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch

from .history import Area
from .records import fetch, produce

TOPIC_RESOURCE = 2
# Ages of records in ms; those below 0 are in the future.
AGES = (0, 0, 1000, 5000, 20_000, 100_000, -2000, -10_000, 3_000_000)
# Seconds until both brokers have applied the retention several times.
APPLY_SECONDS = 1.6
ROLL_SECONDS = 0.6
EARLIEST, LATEST, LARGEST_TIME, EARLIEST_LOCAL = -2, -1, -3, -4


class Retention(Area):
    """One partition with small segments."""

    weights: ClassVar[Mapping[str, int]] = {
        "produce": 70,
        "list_offsets": 15,
        "roll": 8,
        "retain": 4,
        "change_retention": 3,
    }

    def begin(self) -> None:
        rng = self.rng
        configs: dict[str, object] = {
            "internal_segment_bytes": rng.choice((300, 1000, 5000)),
            "retention_ms": rng.choice((-1, 3000, 10_000, 60_000)),
            "file_delete_delay_ms": 0,
        }
        if self.chance(0.5):
            configs["retention_bytes"] = rng.choice((-1, 0, 500, 3000))
        if self.chance(0.5):
            configs["segment_ms"] = rng.choice((1, 1000, 5000))
        if self.chance(0.2):
            configs["index_interval_bytes"] = 0
        self.now_ms = int(time.time() * 1000)
        self.written: list[int] = []
        self.pair.create(self.prefix, 1, **configs)

    def end(self) -> None:
        self.retain()
        message = fetch(self.prefix, 12, {0: 0}, 1 << 24)
        self.pair.ask(ApiKey.FETCH, 12, message, again=True)

    def produce(self) -> None:
        rng, first = self.rng, self.now_ms - self.rng.choice(AGES)
        times = [first + rng.choice((0, 0, -1000, 1000)) for _ in range(rng.choice((1, 2, 4)))]
        self.pair.times.update(times)
        self.written.extend(times)
        value = b"v" * rng.choice((1, 50, 200))
        batch = encode_batch(
            [Record(b"k", value, each) for each in times], codec=rng.choice((0, 0, 2, 4))
        )
        # Retention may advance the log start offset at any time.
        self.pair.ask(
            ApiKey.PRODUCE,
            9,
            produce(self.prefix, 0, 9, lambda side: batch),
            ignores=("log_start_offset",),
        )

    def roll(self) -> None:
        time.sleep(ROLL_SECONDS)

    def list_offsets(self) -> None:
        self._list_offsets(LARGEST_TIME)
        if self.written:
            self._list_offsets(self.rng.choice(self.written))

    def retain(self) -> None:
        time.sleep(APPLY_SECONDS)
        for spec in (EARLIEST, LATEST, LARGEST_TIME, EARLIEST_LOCAL, 0):
            self._list_offsets(spec)
        if self.written:
            some = self.rng.sample(self.written, min(4, len(self.written)))
            for each in (*some, max(self.written) + 1, min(self.written) - 1):
                self._list_offsets(each)

    def _list_offsets(self, spec: int) -> None:
        key = ApiKey.LIST_OFFSETS
        row = of(key, "Partition", partition_index=0, timestamp=spec)
        topic = of(key, "Topic", name=self.prefix, partitions=[row])
        self.pair.ask(key, 11, request(key, replica_id=-1, topics=[topic]), again=True)

    def change_retention(self) -> None:
        key, name = ApiKey.INCREMENTAL_ALTER_CONFIGS, self.rng.choice(("ms", "ms", "bytes"))
        value = self.rng.choice(("1", "500", "1000", "20000"))
        row = of(key, "Config", name=f"retention.{name}", config_operation=0, value=value)
        resource = of(
            key,
            "Resource",
            resource_type=TOPIC_RESOURCE,
            resource_name=self.prefix,
            configs=[row],
        )
        self.pair.ask(key, 1, request(key, resources=[resource]))
        self.retain()
