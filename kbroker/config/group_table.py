"""Settings of groups and of client metrics, and the broker settings behind those of groups.

Those of consumer groups (KIP-848), of share groups (KIP-932), of streams groups (KIP-1071) and of client
metrics (KIP-714) hold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from .property import BOOLEAN, INT, LIST, STRING, Property, Settings


class _Range(NamedTuple):
    """A default, and what an operator may set instead."""

    default: int
    minimum: int
    maximum: int | None = None


class _Limited(NamedTuple):
    """A number that a group may set between two limits that the broker sets."""

    name: str
    doc: str
    unit: str
    value: _Range
    least: _Range
    most: _Range
    dynamic: bool = False

    def default(self) -> Property[int]:
        """The broker's setting for groups without one of their own."""
        name = f"group.{self.name}"
        return _number(name, f"{self.doc}.", self.value, self.unit, self.dynamic)

    def of_broker(self) -> tuple[Property[int], ...]:
        """The default and its two limits."""
        kind, _, rest = self.name.partition(".")
        least = f"Least `{self.name}` of a group."
        most = f"Largest `{self.name}` of a group."
        return (
            self.default(),
            _number(f"group.{kind}.min.{rest}", least, self.least, self.unit),
            _number(f"group.{kind}.max.{rest}", most, self.most, self.unit),
        )

    def of_group(self) -> Property[int]:
        """The setting of a group."""
        return _of_group(self.default())


def _timings(kind: str, words: str) -> tuple[_Limited, ...]:
    """What the three kinds of groups have in common."""
    return (
        _Limited(
            f"{kind}.session.timeout.ms",
            f"Silence after which a member is removed, in {words}",
            "ms",
            _Range(45_000, 1),
            _Range(45_000, 1),
            _Range(60_000, 1),
        ),
        _Limited(
            f"{kind}.heartbeat.interval.ms",
            f"Time between two heartbeats of a member, in {words}",
            "ms",
            _Range(5_000, 1),
            _Range(5_000, 1),
            _Range(15_000, 1),
        ),
        _Limited(
            f"{kind}.assignment.interval.ms",
            f"Shortest time between two assignments, in {words}",
            "ms",
            _Range(1_000, 0),
            _Range(0, 0),
            _Range(15_000, 0),
            dynamic=True,
        ),
    )


_TIMINGS = (
    *_timings("consumer", "consumer groups of the newer protocol"),
    *_timings("share", "share groups"),
    *_timings("streams", "streams groups"),
)
_DELIVERIES = _Limited(
    "share.delivery.count.limit",
    "Times that a share group delivers a record before it gives it up",
    "",
    _Range(5, 2, 10),
    _Range(2, 2, 5),
    _Range(10, 5, 25),
)
_LOCKS = _Limited(
    "share.partition.max.record.locks",
    "Records of one partition that a share group has given out at the same time",
    "",
    _Range(2000, 100, 10_000),
    _Range(100, 100, 2000),
    _Range(4000, 2000, 10_000),
)
_LOCK_DURATION = _Limited(
    "share.record.lock.duration.ms",
    "How long a share group waits for the acknowledgement of a record",
    "ms",
    _Range(30_000, 1000, 3_600_000),
    _Range(15_000, 1000, 30_000),
    _Range(60_000, 30_000, 3_600_000),
)


def _number(
    name: str, doc: str, span: _Range, unit: str = "", dynamic: bool = False
) -> Property[int]:
    return Property(
        name,
        INT,
        str(span.default),
        doc,
        unit=unit,
        minimum=span.minimum,
        maximum=span.maximum,
        dynamic=dynamic,
    )


def _list(name: str, default: str, doc: str, pattern: str, words: str) -> Property[tuple[str, ...]]:
    return Property(name, LIST, default, doc, pattern=pattern, pattern_words=words, dynamic=False)


_UNLIMITED = _Range(2**31 - 1, 1)


class GroupDefaults(Settings):
    __slots__ = ()

    title = "Groups of the newer protocols"

    limited = tuple(
        each for one in (*_TIMINGS, _DELIVERIES, _LOCKS, _LOCK_DURATION) for each in one.of_broker()
    )
    group_consumer_max_size = _number(
        "group.consumer.max.size", "Most members of a consumer group.", _UNLIMITED
    )
    group_share_max_size = _number(
        "group.share.max.size", "Most members of a share group.", _Range(200, 1, 1000)
    )
    group_streams_max_size = _number(
        "group.streams.max.size", "Most members of a streams group.", _UNLIMITED
    )
    group_consumer_assignors = _list(
        "group.consumer.assignors",
        "uniform,range",
        "Assignors that consumer groups can use; the first one is for members that ask for none.",
        r"\s*(uniform|range)\s*(,\s*(uniform|range)\s*)*",
        "a list of uniform and range",
    )
    group_share_assignors = _list(
        "group.share.assignors",
        "simple",
        "Assignors that share groups can use.",
        r"\s*simple\s*",
        "simple",
    )
    group_consumer_migration_policy = Property(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Whether groups may move between the classic and the newer protocol.",
        pattern="(?i)disabled|downgrade|upgrade|bidirectional",
        pattern_words="one of disabled, downgrade, upgrade, bidirectional",
        dynamic=False,
    )
    share_sessions_max = _number(
        "group.share.max.share.sessions", "Most share sessions of a node.", _Range(2000, 1)
    )
    group_streams_num_standby_replicas = _number(
        "group.streams.num.standby.replicas", "Standby copies of each streams task.", _Range(0, 0)
    )
    group_streams_max_standby_replicas = _number(
        "group.streams.max.standby.replicas",
        "Largest `streams.num.standby.replicas` of a group.",
        _Range(2, 0),
    )
    group_streams_initial_rebalance_delay_ms = _number(
        "group.streams.initial.rebalance.delay.ms",
        "Wait of a new streams group for more members before its first assignment.",
        _Range(3000, 0),
        "ms",
    )


def _of_group(default: Property[int]) -> Property[int]:
    """A setting of a group whose default is that of the broker: the broker's limits hold for it."""
    name = default.name.removeprefix("group.")
    return replace(default, name=name, synonyms=(default.name,), maximum=None, dynamic=True)


class GroupSettings(Settings):
    __slots__ = ()

    timings = tuple(each.of_group() for each in _TIMINGS)
    share_delivery_count_limit = _DELIVERIES.of_group()
    share_partition_max_record_locks = _LOCKS.of_group()
    share_record_lock_duration_ms = _LOCK_DURATION.of_group()
    streams_initial_rebalance_delay_ms = _of_group(
        GroupDefaults.group_streams_initial_rebalance_delay_ms
    )
    streams_num_standby_replicas = _of_group(GroupDefaults.group_streams_num_standby_replicas)
    share_auto_offset_reset = Property(
        "share.auto.offset.reset",
        STRING,
        "latest",
        "Where a share group begins to read.",
        pattern=r"latest|earliest|by_duration:P(?=\d|T\d)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?",
        pattern_words="latest, earliest or by_duration:PnDTnHnMn.nS",
    )
    share_isolation_level = Property(
        "share.isolation.level",
        STRING,
        "read_uncommitted",
        "Whether a share group sees records of transactions that are open or aborted.",
        choices=("read_committed", "read_uncommitted"),
    )
    share_renew_acknowledge_enable = Property(
        "share.renew.acknowledge.enable",
        BOOLEAN,
        "true",
        "Whether a member may ask for more time with a record.",
    )


_CLIENT_PATTERN = (
    "client_(instance_id|id|software_name|software_version|source_address|source_port)=[^,]*"
)


class ClientMetricsSettings(Settings):
    __slots__ = ()

    interval_ms = Property(
        "interval.ms",
        INT,
        "300000",
        "Time between two reports of a client's metrics.",
        unit="ms",
        minimum=100,
        maximum=3_600_000,
    )
    match = Property(
        "match",
        LIST,
        "",
        "Which clients report, as `selector=regular expression,...`; empty is all.",
        pattern=rf"({_CLIENT_PATTERN}(,\s*{_CLIENT_PATTERN})*)?",
        pattern_words="a list such as client_id=a.*,client_software_name=b",
    )
    metrics = Property(
        "metrics",
        LIST,
        "",
        "Which metrics are reported, by the beginnings of their names; `*` is all.",
    )
