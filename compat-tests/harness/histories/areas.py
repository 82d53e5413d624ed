"""All areas of random histories, and the settings of the brokers."""

from __future__ import annotations

from .history import Area
from .log import Log
from .offsets import Offsets
from .retention import Retention
from .sessions import Sessions
from .shares import Shares
from .transactions import Transactions

# Settings of both brokers: few partitions of internal topics, and short intervals.
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "group.share.min.record.lock.duration.ms": "1000",
}
AREAS: tuple[type[Area], ...] = (Log, Transactions, Offsets, Sessions, Shares, Retention)
