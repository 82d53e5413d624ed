"""Settings of groups and of client metrics, and the broker settings that are their defaults.

The settings of consumer groups (KIP-848), share groups (KIP-932), streams groups (KIP-1071) and
client metrics (KIP-714) take effect.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeVar

from .property import BOOLEAN, CLASS, INT, LIST, STRING, Property, SettingEffect, Settings, Value

T = TypeVar("T", bound=Value)


class _Range(NamedTuple):
    """The default of a number and the limits within which it may be set."""

    default: int
    minimum: int
    maximum: int | None = None


class _LimitedNumber(NamedTuple):
    """A number that groups may set within two limits, which are broker settings."""

    name: str
    doc: str
    unit: str
    value: _Range
    minimum: _Range
    maximum: _Range
    dynamic: bool = False

    def default_property(self) -> Property[int]:
        """Return the broker setting that is the default of groups."""
        name = f"group.{self.name}"
        return _number(name, f"{self.doc}.", self.value, self.unit, self.dynamic)

    def broker_properties(self) -> tuple[Property[int], ...]:
        """Return the broker settings: the default, the minimum and the maximum."""
        kind, _, rest = self.name.partition(".")
        minimum = f"Minimum value that a group may set for `{self.name}`."
        maximum = f"Maximum value that a group may set for `{self.name}`."
        return (
            self.default_property(),
            _number(f"group.{kind}.min.{rest}", minimum, self.minimum, self.unit),
            _number(f"group.{kind}.max.{rest}", maximum, self.maximum, self.unit),
        )

    def group_property(self) -> Property[int]:
        """Return the group setting."""
        return _group_property(self.default_property())


def _timings(kind: str, group_words: str) -> tuple[_LimitedNumber, ...]:
    """Return the settings of one group type that consumer, share and streams groups have in common."""
    return (
        _LimitedNumber(
            f"{kind}.session.timeout.ms",
            f"How long a member may send no heartbeat before it is removed, in {group_words}",
            "ms",
            _Range(45_000, 1),
            _Range(45_000, 1),
            _Range(60_000, 1),
        ),
        _LimitedNumber(
            f"{kind}.heartbeat.interval.ms",
            f"Interval between the heartbeats of a member, in {group_words}",
            "ms",
            _Range(5_000, 1),
            _Range(5_000, 1),
            _Range(15_000, 1),
        ),
        _LimitedNumber(
            f"{kind}.assignment.interval.ms",
            f"Minimum interval between two assignments, in {group_words}",
            "ms",
            _Range(1_000, 0),
            _Range(0, 0),
            _Range(15_000, 0),
            dynamic=True,
        ),
    )


_TIMINGS = (
    *_timings("consumer", "consumer groups (KIP-848)"),
    *_timings("share", "share groups"),
    *_timings("streams", "streams groups"),
)
_DELIVERY_COUNT_LIMIT = _LimitedNumber(
    "share.delivery.count.limit",
    "Maximum number of delivery attempts for a record in a share group",
    "",
    _Range(5, 2, 10),
    _Range(2, 2, 5),
    _Range(10, 5, 25),
)
_MAX_RECORD_LOCKS = _LimitedNumber(
    "share.partition.max.record.locks",
    "Maximum number of acquired records of one partition in a share group",
    "",
    _Range(2000, 100, 10_000),
    _Range(100, 100, 2000),
    _Range(4000, 2000, 10_000),
)
_LOCK_DURATION = _LimitedNumber(
    "share.record.lock.duration.ms",
    "How long a share consumer holds the acquisition lock of a record",
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


def _list(
    name: str,
    default: str,
    doc: str,
    pattern: str,
    pattern_words: str,
    effect: SettingEffect = SettingEffect.APPLIED,
) -> Property[tuple[str, ...]]:
    return Property(
        name,
        LIST,
        default,
        doc,
        pattern=pattern,
        pattern_words=pattern_words,
        dynamic=False,
        effect=effect,
    )


_UNLIMITED = _Range(2**31 - 1, 1)


class GroupDefaults(Settings):
    __slots__ = ()

    title = "Consumer, share and streams groups"

    limited = tuple(
        each
        for one in (*_TIMINGS, _DELIVERY_COUNT_LIMIT, _MAX_RECORD_LOCKS, _LOCK_DURATION)
        for each in one.broker_properties()
    )
    group_consumer_max_size = _number(
        "group.consumer.max.size", "Maximum number of members of a consumer group.", _UNLIMITED
    )
    group_share_max_size = _number(
        "group.share.max.size", "Maximum number of members of a share group.", _Range(200, 1, 1000)
    )
    group_streams_max_size = _number(
        "group.streams.max.size", "Maximum number of members of a streams group.", _UNLIMITED
    )
    group_consumer_assignors = _list(
        "group.consumer.assignors",
        "uniform,range",
        "List of server-side assignors of consumer groups. The first one is the default.",
        r"\s*(uniform|range)\s*(,\s*(uniform|range)\s*)*",
        "a list of uniform and range",
    )
    group_share_assignors = _list(
        "group.share.assignors",
        "simple",
        "List of server-side assignors of share groups.",
        r"\s*simple\s*",
        "simple",
    )
    group_streams_assignors = _list(
        "group.streams.assignors",
        "sticky",
        "List of server-side task assignors of streams groups. The first one is the default.",
        r"\s*sticky\s*",
        "sticky",
    )
    group_streams_rack_aware_assignment_tags = Property(
        "group.streams.rack.aware.assignment.tags",
        LIST,
        "",
        "Keys of the client tags that each member of a streams group should have. The sticky "
        "assignor does not use the tags.",
        distinct=True,
        dynamic=False,
    )
    group_streams_topology_description_plugin_class = Property(
        "group.streams.topology.description.plugin.class",
        CLASS,
        None,
        "Class that stores the topology descriptions of streams groups in Kafka. kbroker stores them "
        "in `__consumer_offsets`.",
        dynamic=False,
        effect=SettingEffect.NONE,
    )
    errors_deadletterqueue_auto_create_topics_enable = Property(
        "errors.deadletterqueue.auto.create.topics.enable",
        BOOLEAN,
        "false",
        "If true, the broker creates the dead-letter queue topic of a share group if it does not "
        "exist.",
    )
    errors_deadletterqueue_topic_name_prefix = Property(
        "errors.deadletterqueue.topic.name.prefix",
        STRING,
        "dlq.",
        "Required prefix of the names of dead-letter queue topics. If empty, every name is "
        "permitted.",
    )
    group_consumer_migration_policy = Property(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Which online conversions of groups between the classic and the consumer protocol are "
        "permitted.",
        pattern="(?i)disabled|downgrade|upgrade|bidirectional",
        pattern_words="one of disabled, downgrade, upgrade, bidirectional",
        dynamic=False,
    )
    share_sessions_max = _number(
        "group.share.max.share.sessions",
        "Maximum number of share sessions per broker.",
        _Range(2000, 1),
    )
    group_streams_num_standby_replicas = _number(
        "group.streams.num.standby.replicas",
        "Number of standby replicas of each streams task.",
        _Range(0, 0),
    )
    group_streams_max_standby_replicas = _number(
        "group.streams.max.standby.replicas",
        "Maximum value that a group may set for `streams.num.standby.replicas`.",
        _Range(2, 0),
    )
    group_streams_initial_rebalance_delay_ms = _number(
        "group.streams.initial.rebalance.delay.ms",
        "How long a new streams group waits for more members before its first assignment.",
        _Range(3000, 0),
        "ms",
    )


def _group_property(default: Property[T]) -> Property[T]:
    """Return the group setting for a broker setting; the broker's limits apply to it."""
    name = default.name.removeprefix("group.")
    return replace(default, name=name, synonyms=(default.name,), maximum=None, dynamic=True)


class GroupSettings(Settings):
    __slots__ = ()

    timings = tuple(each.group_property() for each in _TIMINGS)
    share_delivery_count_limit = _DELIVERY_COUNT_LIMIT.group_property()
    share_partition_max_record_locks = _MAX_RECORD_LOCKS.group_property()
    share_record_lock_duration_ms = _LOCK_DURATION.group_property()
    streams_initial_rebalance_delay_ms = _group_property(
        GroupDefaults.group_streams_initial_rebalance_delay_ms
    )
    streams_num_standby_replicas = _group_property(GroupDefaults.group_streams_num_standby_replicas)
    streams_assignor_name = Property(
        "streams.assignor.name",
        STRING,
        "sticky",
        "Task assignor of the streams group. If unset, it is the first one of "
        "`group.streams.assignors`. A change applies to the next assignment.",
        synonyms=(GroupDefaults.group_streams_assignors.name,),
    )
    streams_rack_aware_assignment_tags = _group_property(
        GroupDefaults.group_streams_rack_aware_assignment_tags
    )
    errors_deadletterqueue_topic_name = Property(
        "errors.deadletterqueue.topic.name",
        STRING,
        "",
        "Name of the dead-letter queue topic of the share group. If empty, records that could not "
        "be delivered are dropped.",
    )
    errors_deadletterqueue_copy_record_enable = Property(
        "errors.deadletterqueue.copy.record.enable",
        BOOLEAN,
        "false",
        "If true, the key, the value and the headers of a record are copied to the dead-letter queue "
        "topic; if false, the record in the topic has only headers about its origin.",
    )
    share_auto_offset_reset = Property(
        "share.auto.offset.reset",
        STRING,
        "latest",
        "Offset at which a new share group starts to read.",
        pattern=r"latest|earliest|by_duration:P(?=\d|T\d)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?",
        pattern_words="latest, earliest or by_duration:PnDTnHnMn.nS",
    )
    share_isolation_level = Property(
        "share.isolation.level",
        STRING,
        "read_uncommitted",
        "If `read_committed`, share consumers get only committed transactional records; if "
        "`read_uncommitted`, also those of open and aborted transactions.",
        choices=("read_committed", "read_uncommitted"),
    )
    share_renew_acknowledge_enable = Property(
        "share.renew.acknowledge.enable",
        BOOLEAN,
        "true",
        "If true, share consumers may renew the acquisition lock of a record.",
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
        "Interval between two pushes of a client's metrics.",
        unit="ms",
        minimum=100,
        maximum=3_600_000,
    )
    match = Property(
        "match",
        LIST,
        "",
        "Selectors of the clients that push metrics, as `selector=regular expression,...`. If "
        "empty, all clients match.",
        pattern=rf"({_CLIENT_PATTERN}(,\s*{_CLIENT_PATTERN})*)?",
        pattern_words="a list such as client_id=a.*,client_software_name=b",
    )
    metrics = Property(
        "metrics",
        LIST,
        "",
        "Prefixes of the names of the metrics to push; `*` means all metrics.",
    )
