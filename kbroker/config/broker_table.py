"""Broker settings: one class for each subject, one attribute for each setting.

The table has the settings of Apache Kafka 4.4 that kbroker applies or plans to apply, Kafka
settings that appear in most configuration files, and kbroker's own settings. Kafka's other settings
are listed in `kafka_only`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from .group_table import GroupDefaults
from .property import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    SHORT,
    STRING,
    Kind,
    Property,
    SettingEffect,
    Settings,
    Value,
)

T = TypeVar("T", bound=Value)

_FOREVER = str(2**63 - 1)
_UNLIMITED = str(2**31 - 1)
# Largest array of a Java virtual machine in bytes, and so the largest record of Kafka.
RECORD_BYTES_MAX = 2**31 - 9
_LIMITED_HOST = r"[^,\s][^,]*:\d{1,10}"
_LISTENER_EXAMPLE = "PLAINTEXT://localhost:9092"


RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _replicas(nodes: int) -> int:
    return min(3, nodes)


def _min_in_sync(nodes: int) -> int:
    # The coordinators keep working while one node is down.
    return max(1, _replicas(nodes) - 1)


class NodeSettings(Settings):
    __slots__ = ()

    title = "Node and listeners"

    node_id = Property(
        "node.id",
        INT,
        "1",
        "Node ID of this broker, unique in the cluster.",
        minimum=0,
        dynamic=False,
        kafka_default="none: must be set",
    )
    broker_id = Property(
        "broker.id",
        INT,
        "1",
        "Former name of `node.id`; setting one sets both.",
        minimum=-1,
        dynamic=False,
        kafka_default="-1",
    )
    broker_rack = Property(
        "broker.rack",
        STRING,
        None,
        "Rack of this broker. Clients see it in metadata responses; it is used for rack-aware "
        "replica assignment and for fetching from the closest replica.",
        dynamic=False,
    )
    all_listeners = Property(
        "listeners",
        LIST,
        _LISTENER_EXAMPLE,
        "Addresses to listen on, as a list of `NAME://host:port`. An empty host, `0.0.0.0` and "
        "`[::]` mean all interfaces, and `localhost` means the loopback interface, each for IPv4 "
        "and IPv6.",
        dynamic=False,
        kafka_dynamic=True,
        kafka_default="PLAINTEXT://:9092",
    )
    all_advertised_listeners = Property(
        "advertised.listeners",
        LIST,
        None,
        "Addresses that clients use to connect to this broker, as a list of `NAME://host:port`. "
        "An empty host means the canonical host name of this machine. For a listener without an "
        "entry, each client gets the address to which it connected.",
        dynamic=False,
    )
    listener_security_protocol_map = Property(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Mapping of listener names to security protocols, as `NAME:PROTOCOL,...`.",
        dynamic=False,
        kafka_dynamic=True,
    )
    _inter_broker_listener_name = Property(
        "inter.broker.listener.name",
        STRING,
        None,
        "Name of the listener for communication between brokers. If unset, it is the listener "
        "named like `security.inter.broker.protocol`, or else the first listener.",
        dynamic=False,
    )
    inter_broker_protocol = Property(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "Security protocol for communication between brokers. It selects the listener of the same "
        "name.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        dynamic=False,
    )


class ClusterSettings(Settings):
    __slots__ = ()

    title = "Clusters of several nodes"

    broker_session_timeout_ms = Property(
        "broker.session.timeout.ms",
        INT,
        "600",
        "How long a broker session lasts without a heartbeat, in a cluster of several nodes. When "
        "it expires, the other nodes elect new leaders for the broker's partitions.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kafka_default="9000",
    )
    broker_heartbeat_interval_ms = Property(
        "broker.heartbeat.interval.ms",
        INT,
        "200",
        "Interval between the heartbeats of a broker, in a cluster of several nodes. At most a "
        "third of `broker.session.timeout.ms`.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kafka_default="2000",
    )
    expired_lease_acks_enable = Property(
        "expired.lease.acks.enable",
        BOOLEAN,
        "false",
        "If true, a leader whose lease may have expired accepts acks=0 and acks=1 writes. These "
        "records are lost if another node has been elected leader. Writes with acks=all are "
        "accepted in any case.",
        dynamic=False,
        kbroker_only=True,
    )
    controlled_shutdown_enable = Property(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "If true, a broker moves the leadership of its partitions to other brokers before it "
        "stops.",
        dynamic=False,
    )
    auto_leader_rebalance_enable = Property(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "If true, the controller regularly moves leadership back to the preferred replica, the "
        "first replica of each partition.",
        dynamic=False,
    )
    leader_imbalance_check_interval_seconds = Property(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "Interval between the controller's checks for partitions that their preferred replica "
        "does not lead.",
        unit="seconds",
        minimum=1,
        dynamic=False,
    )


class StorageSettings(Settings):
    __slots__ = ()

    title = "Storage"

    _log_dirs = Property(
        "log.dirs",
        LIST,
        None,
        "Log directories of this broker; if unset, `log.dir` is used. A new partition is created "
        "in the directory with the fewest partitions; clients can move it. The first directory "
        "initially also holds the metadata log.",
        dynamic=False,
    )
    log_dir = Property(
        "log.dir",
        LIST,
        "./kbroker-data",
        "Log directory of this broker, used if `log.dirs` is unset.",
        items_max=1,
        dynamic=False,
        kafka_default="/tmp/kafka-logs",
    )
    cordoned_log_dirs = Property(
        "cordoned.log.dirs",
        LIST,
        "",
        "Log directories of `log.dirs` in which no new partitions are created; `*` means all log "
        "directories (KIP-1066).",
    )
    discarded_log_dir_ids = Property(
        "log.dirs.discarded.ids",
        LIST,
        None,
        "Directory IDs (`directory.id` in `meta.properties`) of log directories that are permanently "
        "lost. If a log directory is missing and its ID is not listed here, the broker does not start, "
        "because the partitions of that directory would start empty.",
        dynamic=False,
        kbroker_only=True,
    )
    flush_policy = Property(
        "flush.policy",
        STRING,
        "fsync",
        "When appended records are written to disk: `fsync` before each acknowledgement, "
        "`interval` every `flush.interval.ms`, `os` when the operating system writes them. With "
        "`interval` and `os` a power failure can lose acknowledged records. Kafka's behaviour is "
        "`os`.",
        choices=("fsync", "interval", "os"),
        dynamic=False,
        kbroker_only=True,
    )
    flush_interval_ms = Property(
        "flush.interval.ms",
        LONG,
        "1000",
        "Interval between two fsyncs of a log with `flush.policy=interval`.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    memory_limit_bytes = Property(
        "memory.limit.bytes",
        LONG,
        str(2**30),
        "Maximum size of the data that a broker started with `--memory` holds. Above it, produce "
        "requests fail with KAFKA_STORAGE_ERROR. Records are deleted only by retention.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )


class TopicDefaults(Settings):
    __slots__ = ()

    title = "Topics"

    num_partitions = Property(
        "num.partitions",
        INT,
        "1",
        "Default number of partitions of a new topic.",
        minimum=1,
        dynamic=False,
    )
    default_replication_factor = Property(
        "default.replication.factor",
        INT,
        "1",
        "Default replication factor of a new topic.",
        minimum=1,
        dynamic=False,
    )
    replication_factor_clamp = Property(
        "replication.factor.clamp",
        BOOLEAN,
        "false",
        "If true, a replication factor above the number of nodes is reduced to that number, with "
        "one warning, instead of being rejected. Useful for applications that always request 3.",
        dynamic=False,
        kbroker_only=True,
    )
    allow_auto_create_topics = Property(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "If true, a metadata request for a topic that does not exist creates the topic, if the "
        "client allows auto-creation.",
        dynamic=False,
    )
    allow_delete_topics = Property(
        "delete.topic.enable",
        BOOLEAN,
        "true",
        "If true, topics can be deleted.",
        dynamic=False,
    )
    min_insync_replicas = Property(
        "min.insync.replicas",
        INT,
        "1",
        "Minimum number of in-sync replicas that must have a record before a write with "
        "`acks=all` succeeds.",
        minimum=1,
    )
    unclean_leader_election_enable = Property(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "If true, a replica outside the ISR can become leader if no other replica is available, "
        "which can lose records. In kbroker only an explicit request elects such a replica "
        "(`kafka-leader-election --election-type unclean`).",
        effect=SettingEffect.NONE,
    )
    compression_type = Property(
        "compression.type",
        STRING,
        "producer",
        "Compression codec in which batches are stored; `producer` keeps the codec of the "
        "producer.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level = Property(
        "compression.gzip.level",
        INT,
        "-1",
        "Compression level for gzip; -1 means the default of the library.",
        minimum=1,
        maximum=9,
        extra_numbers=(-1,),
    )
    compression_lz4_level = Property(
        "compression.lz4.level",
        INT,
        "9",
        "Compression level for lz4.",
        minimum=1,
        maximum=17,
    )
    compression_zstd_level = Property(
        "compression.zstd.level",
        INT,
        "3",
        "Compression level for zstd.",
        minimum=-131072,
        maximum=22,
    )


class LogSettings(Settings):
    __slots__ = ()

    title = "Logs"

    message_max_bytes = Property(
        "message.max.bytes",
        INT,
        "1048588",
        "Maximum size of a record batch, after compression.",
        unit="bytes",
        minimum=0,
    )
    max_decompressed_message_bytes = Property(
        "max.decompressed.message.bytes",
        INT,
        str(RECORD_BYTES_MAX),
        "Maximum size of one record of a compressed batch after decompression, for topics without "
        "their own value.",
        unit="bytes",
        minimum=1,
        maximum=RECORD_BYTES_MAX,
    )
    log_cleanup_policy = Property(
        "log.cleanup.policy",
        LIST,
        "delete",
        "Default cleanup policy of topics: `delete` deletes old segments, `compact` keeps the "
        "last record of each key.",
        choices=("compact", "delete"),
    )
    log_retention_ms = Property(
        "log.retention.ms",
        LONG,
        None,
        "How long a segment is kept before it is deleted; -1 means no limit. If unset, "
        "`log.retention.minutes` is used.",
        unit="ms",
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    log_retention_minutes = Property(
        "log.retention.minutes",
        INT,
        None,
        "How long a segment is kept before it is deleted, in minutes. If unset, "
        "`log.retention.hours` is used.",
        unit="minutes",
        minimum=-1,
        dynamic=False,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    log_retention_hours = Property(
        "log.retention.hours",
        INT,
        "168",
        "How long a segment is kept before it is deleted, in hours. `log.retention.ms` and "
        "`log.retention.minutes` take precedence.",
        unit="hours",
        minimum=-1,
        dynamic=False,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    log_retention_bytes = Property(
        "log.retention.bytes",
        LONG,
        "-1",
        "Maximum size of a partition before its oldest segments are deleted; -1 means no limit.",
        unit="bytes",
    )
    retention_check_interval_ms = Property(
        "log.retention.check.interval.ms",
        LONG,
        "300000",
        "Interval between checks for segments that retention can delete.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    log_segment_bytes = Property(
        "log.segment.bytes",
        INT,
        "1073741824",
        "Maximum size of a segment file. When it is reached, a new segment is rolled.",
        unit="bytes",
        minimum=1048576,
    )
    log_roll_ms = Property(
        "log.roll.ms",
        LONG,
        None,
        "Maximum time before a new segment is rolled. If unset, `log.roll.hours` is used.",
        unit="ms",
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    log_roll_hours = Property(
        "log.roll.hours",
        INT,
        "168",
        "Maximum time before a new segment is rolled, in hours. `log.roll.ms` takes precedence.",
        unit="hours",
        minimum=1,
        dynamic=False,
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    log_roll_jitter_ms = Property(
        "log.roll.jitter.ms",
        LONG,
        None,
        "Maximum random time that is subtracted from the roll time of a segment. If unset, "
        "`log.roll.jitter.hours` is used.",
        unit="ms",
        minimum=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    log_roll_jitter_hours = Property(
        "log.roll.jitter.hours",
        INT,
        "0",
        "Maximum random time that is subtracted from the roll time of a segment, in hours. "
        "`log.roll.jitter.ms` takes precedence.",
        unit="hours",
        minimum=0,
        dynamic=False,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    log_index_interval_bytes = Property(
        "log.index.interval.bytes",
        INT,
        "4096",
        "Interval, in bytes of log, between two entries of the offset index.",
        unit="bytes",
        minimum=0,
    )
    log_index_size_max_bytes = Property(
        "log.index.size.max.bytes",
        INT,
        "10485760",
        "Maximum size of the offset index of a segment. When the index is full, a new segment is "
        "rolled.",
        unit="bytes",
        minimum=4,
    )
    log_message_timestamp_type = Property(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "Timestamp of a record: the time when the producer created it, or the time when the "
        "broker appended it.",
        choices=("CreateTime", "LogAppendTime"),
    )
    log_message_timestamp_after_max_ms = Property(
        "log.message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "Maximum time by which the timestamp of a record may be ahead of the broker's clock.",
        unit="ms",
        minimum=0,
    )
    log_message_timestamp_before_max_ms = Property(
        "log.message.timestamp.before.max.ms",
        LONG,
        _FOREVER,
        "Maximum time by which the timestamp of a record may be behind the broker's clock.",
        unit="ms",
        minimum=0,
    )
    log_flush_interval_messages = Property(
        "log.flush.interval.messages",
        LONG,
        _FOREVER,
        "Maximum number of records in a log that are not yet on disk. At this number, the next "
        "acknowledgement waits for an fsync. No effect with `flush.policy=fsync`, which syncs "
        "before each acknowledgement.",
        minimum=1,
    )
    log_flush_interval_ms = Property(
        "log.flush.interval.ms",
        LONG,
        None,
        "Maximum time that a record is in memory only before the log is synced. No effect with "
        "`flush.policy=fsync`, which syncs before each acknowledgement.",
        unit="ms",
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    log_flush_scheduler_interval_ms = Property(
        "log.flush.scheduler.interval.ms",
        LONG,
        _FOREVER,
        "Used for `log.flush.interval.ms` if that is unset.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    log_flush_offset_checkpoint_interval_ms = Property(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "Interval between two recovery checkpoints. kbroker writes one at least every 5 seconds.",
        unit="ms",
        minimum=0,
        dynamic=False,
        effect=SettingEffect.NONE,
    )
    log_flush_start_offset_checkpoint_interval_ms = Property(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "Interval between two checkpoints of the log start offset. kbroker writes one whenever "
        "the log start offset advances.",
        unit="ms",
        minimum=0,
        dynamic=False,
        effect=SettingEffect.NONE,
    )
    log_segment_delete_delay_ms = Property(
        "log.segment.delete.delay.ms",
        LONG,
        "60000",
        "How long to wait before the files of a deleted segment are removed. kbroker removes them "
        "at once.",
        unit="ms",
        minimum=0,
        effect=SettingEffect.NONE,
    )
    log_preallocate = Property(
        "log.preallocate",
        BOOLEAN,
        "false",
        "If true, the disk space of a new segment is allocated in advance. In kbroker segments "
        "always grow as they are written.",
        effect=SettingEffect.NONE,
    )
    log_local_retention_bytes = Property(
        "log.local.retention.bytes",
        LONG,
        "-2",
        "Maximum size of the local log of a partition with tiered storage, which kbroker does not "
        "support.",
        unit="bytes",
        minimum=-2,
        effect=SettingEffect.NONE,
    )
    log_local_retention_ms = Property(
        "log.local.retention.ms",
        LONG,
        "-2",
        "How long segments are kept on local disk with tiered storage, which kbroker does not "
        "support.",
        unit="ms",
        minimum=-2,
        effect=SettingEffect.NONE,
    )
    log_remote_copy_lag_bytes = Property(
        "log.remote.copy.lag.bytes",
        LONG,
        "-1",
        "Minimum size of the newer records in the local log before a closed segment is copied to "
        "tiered storage, which kbroker does not support.",
        unit="bytes",
        minimum=-1,
        effect=SettingEffect.NONE,
    )
    log_remote_copy_lag_ms = Property(
        "log.remote.copy.lag.ms",
        LONG,
        "0",
        "Minimum age of the newest record of a closed segment before the segment is copied to tiered "
        "storage, which kbroker does not support.",
        unit="ms",
        minimum=-1,
        effect=SettingEffect.NONE,
    )
    log_cleaner_delete_retention_ms = Property(
        "log.cleaner.delete.retention.ms",
        LONG,
        "86400000",
        "How long tombstones (records that delete a key) are kept in compacted topics.",
        unit="ms",
        minimum=0,
    )
    log_cleaner_max_compaction_lag_ms = Property(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        _FOREVER,
        "Maximum time that a record stays uncompacted.",
        unit="ms",
        minimum=1,
    )
    log_cleaner_min_compaction_lag_ms = Property(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        "0",
        "Minimum time that a record stays uncompacted.",
        unit="ms",
        minimum=0,
    )
    log_cleaner_min_cleanable_ratio = Property(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        "0.5",
        "Minimum ratio of uncompacted to total log size before a log is compacted again.",
        minimum=0,
        maximum=1,
    )
    log_cleaner_enable = Property(
        "log.cleaner.enable",
        BOOLEAN,
        "true",
        "If true, topics with `cleanup.policy=compact` are compacted.",
        dynamic=False,
    )
    log_scrub_bytes_per_second = Property(
        "log.scrub.bytes.per.second",
        LONG,
        "4194304",
        "Rate at which stored records are read in the background and verified against their "
        "checksums; 0 disables the verification. A partition with a damaged batch goes offline.",
        unit="bytes",
        minimum=0,
        kbroker_only=True,
    )
    log_scrub_interval_ms = Property(
        "log.scrub.interval.ms",
        LONG,
        "604800000",
        "Interval between the starts of two verifications of all logs; see "
        "`log.scrub.bytes.per.second`.",
        unit="ms",
        minimum=1,
        kbroker_only=True,
    )
    log_cleaner_backoff_ms = Property(
        "log.cleaner.backoff.ms",
        LONG,
        "15000",
        "Interval between checks for topics that need compaction.",
        unit="ms",
        minimum=0,
    )
    log_cleaner_dedupe_buffer_bytes = Property(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        "134217728",
        "Maximum memory for the keys of one compaction, at 160 bytes per key (Kafka: 24). A log "
        "with more keys is compacted in several passes. The memory is used by the process that "
        "compacts.",
        unit="bytes",
    )


class ClassicGroupSettings(Settings):
    __slots__ = ()

    title = "Classic groups and offsets"

    group_initial_rebalance_delay_ms = Property(
        "group.initial.rebalance.delay.ms",
        INT,
        "0",
        "How long a new group waits for more members before its first rebalance.",
        unit="ms",
        minimum=0,
        dynamic=False,
        kafka_default="3000",
    )
    group_min_session_timeout_ms = Property(
        "group.min.session.timeout.ms",
        INT,
        "6000",
        "Minimum session timeout that a member may request.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    group_max_session_timeout_ms = Property(
        "group.max.session.timeout.ms",
        INT,
        "1800000",
        "Maximum session timeout that a member may request.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    group_max_size = Property(
        "group.max.size",
        INT,
        _UNLIMITED,
        "Maximum number of members of a classic group.",
        minimum=1,
        dynamic=False,
    )
    group_member_metadata_max_bytes = Property(
        "group.member.metadata.max.bytes",
        INT,
        "1048576",
        "Maximum size of the metadata that one member of a classic group may join with, over all its "
        "protocols. The broker rejects a larger one with INVALID_REQUEST.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        kbroker_only=True,
    )
    group_metadata_max_bytes = Property(
        "group.metadata.max.bytes",
        INT,
        "16777216",
        "Maximum size of the metadata of all members of one classic group. The broker rejects a "
        "member that would exceed it with GROUP_MAX_SIZE_REACHED.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        kbroker_only=True,
    )
    group_coordinator_members_max_bytes = Property(
        "group.coordinator.members.max.bytes",
        LONG,
        "134217728",
        "Maximum memory for the members of all groups of a broker: metadata, subscriptions, "
        "assignments and topologies. The broker rejects a member that would exceed it with "
        "COORDINATOR_LOAD_IN_PROGRESS, which clients retry. Clients of one IP address can use at "
        "most half of the memory that other addresses leave free.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        kbroker_only=True,
    )
    group_coordinator_offsets_max_bytes = Property(
        "group.coordinator.offsets.max.bytes",
        LONG,
        "268435456",
        "Maximum memory for the committed offsets of all groups of a broker: each metadata string "
        "plus about 400 bytes. The broker rejects a commit that would exceed it with "
        "INVALID_COMMIT_OFFSET_SIZE. Groups can still commit to partitions for which they have an "
        "offset.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        kbroker_only=True,
    )
    offset_metadata_max_bytes = Property(
        "offset.metadata.max.bytes",
        INT,
        "4096",
        "Maximum size of the metadata string of a committed offset.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    )
    offsets_retention_minutes = Property(
        "offsets.retention.minutes",
        INT,
        "10080",
        "How long the committed offsets of an empty group are kept.",
        unit="minutes",
        minimum=1,
        dynamic=False,
    )
    offsets_retention_check_interval_ms = Property(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        "Interval between checks for expired offsets.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    offsets_commit_timeout_ms = Property(
        "offsets.commit.timeout.ms",
        INT,
        "5000",
        "How long a coordinator waits until its write, such as an offset commit, is replicated. "
        "Then the client gets a retriable error.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    offsets_topic_num_partitions = Property(
        "offsets.topic.num.partitions",
        INT,
        "50",
        "Number of partitions of `__consumer_offsets`; it cannot change after the topic is "
        "created.",
        minimum=1,
        dynamic=False,
    )
    offsets_topic_replication_factor = Property(
        "offsets.topic.replication.factor",
        SHORT,
        "1",
        "Replication factor of `__consumer_offsets`. By default the number of nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    )
    offsets_topic_segment_bytes = Property(
        "offsets.topic.segment.bytes",
        INT,
        "104857600",
        "Maximum segment size of `__consumer_offsets`.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )


class TransactionSettings(Settings):
    __slots__ = ()

    title = "Producers and transactions"

    producer_id_expiration_ms = Property(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        "How long a partition keeps the sequence numbers of an inactive producer. A partition "
        "keeps at most 10,000 producers; above that, the longest inactive ones are removed first.",
        unit="ms",
        minimum=1,
    )
    transaction_coordinator_ids_max_bytes = Property(
        "transaction.coordinator.ids.max.bytes",
        LONG,
        "134217728",
        "Maximum memory for the transactional IDs of a broker, about 1 kB each. The broker "
        "rejects a producer with a new ID that would exceed it with COORDINATOR_LOAD_IN_PROGRESS, "
        "which clients retry. Clients of one IP address can use at most half of the memory that "
        "other addresses leave free.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        kbroker_only=True,
    )
    transactional_id_expiration_ms = Property(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        "How long an unused transactional ID is kept.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    transaction_max_timeout_ms = Property(
        "transaction.max.timeout.ms",
        INT,
        "900000",
        "Maximum transaction timeout that a producer may request.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    transaction_partition_verification_enable = Property(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        "If true, the first transactional batch in a partition is appended only after the "
        "transaction coordinator has confirmed that the partition is part of the transaction.",
    )
    transaction_remove_expired_interval_ms = Property(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "3600000",
        "Interval between checks for expired transactional IDs.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    transaction_state_log_num_partitions = Property(
        "transaction.state.log.num.partitions",
        INT,
        "50",
        "Number of partitions of `__transaction_state`; it cannot change after the topic is "
        "created.",
        minimum=1,
        dynamic=False,
    )
    transaction_state_log_replication_factor = Property(
        "transaction.state.log.replication.factor",
        SHORT,
        "1",
        "Replication factor of `__transaction_state`. By default the number of nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    )
    transaction_state_log_min_isr = Property(
        "transaction.state.log.min.isr",
        INT,
        "1",
        "`min.insync.replicas` of `__transaction_state`. By default one less than its replication "
        "factor, at least 1.",
        minimum=1,
        dynamic=False,
        kafka_default="2",
        per_nodes=_min_in_sync,
    )
    transaction_state_log_segment_bytes = Property(
        "transaction.state.log.segment.bytes",
        INT,
        "104857600",
        "Maximum segment size of `__transaction_state`.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    share_state_num_partitions = Property(
        "share.coordinator.state.topic.num.partitions",
        INT,
        "50",
        "Number of partitions of `__share_group_state`; it cannot change after the topic is "
        "created.",
        minimum=1,
        dynamic=False,
    )
    share_state_replication_factor = Property(
        "share.coordinator.state.topic.replication.factor",
        SHORT,
        "1",
        "Replication factor of `__share_group_state`. By default the number of nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    )
    share_state_min_isr = Property(
        "share.coordinator.state.topic.min.isr",
        SHORT,
        "1",
        "`min.insync.replicas` of `__share_group_state`. By default one less than its replication "
        "factor, at least 1.",
        minimum=1,
        dynamic=False,
        kafka_default="2",
        per_nodes=_min_in_sync,
    )
    share_state_segment_bytes = Property(
        "share.coordinator.state.topic.segment.bytes",
        INT,
        "104857600",
        "Maximum segment size of `__share_group_state`.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    share_state_updates_max = Property(
        "share.coordinator.snapshot.update.records.per.snapshot",
        INT,
        "500",
        "Maximum number of update records of a share partition that the share coordinator writes "
        "between two snapshots.",
        minimum=0,
        maximum=500,
        dynamic=False,
    )


def _quota(name: str, doc: str, effect: SettingEffect = SettingEffect.APPLIED) -> Property[int]:
    return Property(
        name,
        LONG,
        _FOREVER,
        f"{doc} Applies only to the replicas in a topic's `*.throttled.replicas`.",
        unit="bytes per second",
        minimum=0,
        effect=effect,
    )


class ReplicationSettings(Settings):
    __slots__ = ()

    title = "Replication"

    replica_fetch_wait_max_ms = Property(
        "replica.fetch.wait.max.ms",
        INT,
        "500",
        "Maximum time that a leader delays its response to a follower's fetch request if there "
        "are not enough new records.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    replica_fetch_min_bytes = Property(
        "replica.fetch.min.bytes",
        INT,
        "1",
        "Minimum size of the records in a response to a follower. The leader waits for this size, "
        "up to `replica.fetch.wait.max.ms`.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    )
    replica_fetch_max_bytes = Property(
        "replica.fetch.max.bytes",
        INT,
        "1048576",
        "Maximum size of the records of one partition in a response to a follower. A larger first "
        "batch is still returned.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    )
    replica_fetch_response_max_bytes = Property(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        "Maximum size of the records in a response to a follower. A larger first batch is still "
        "returned.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    )
    replica_fetch_backoff_ms = Property(
        "replica.fetch.backoff.ms",
        INT,
        "1000",
        "Maximum time that a follower waits before it retries after a fetch error or a failed "
        "connection. The first retries are sooner.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    replica_socket_timeout_ms = Property(
        "replica.socket.timeout.ms",
        INT,
        "30000",
        "How long a broker waits for the response of another broker before it reconnects.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    replica_lag_time_max_ms = Property(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        "How long a follower may be behind the log end offset of its leader before it is removed "
        "from the ISR.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    replica_selector_class = Property(
        "replica.selector.class",
        STRING,
        None,
        "Class that selects the replica from which consumers read. If unset, consumers read from "
        "the leader; with Kafka's rack-aware selector, from an in-sync follower in their rack "
        "(`client.rack`), if there is one (KIP-392).",
        choices=(RACK_AWARE_SELECTOR,),
        dynamic=False,
    )


def _windows(name: str, subject: str) -> Property[int]:
    return Property(
        name,
        INT,
        "11",
        f"Number of samples that are kept in memory for {subject} quotas.",
        minimum=1,
        dynamic=False,
    )


def _window_size(name: str, subject: str) -> Property[int]:
    return Property(
        name,
        INT,
        "1",
        f"Duration of each sample for {subject} quotas.",
        unit="seconds",
        minimum=1,
        dynamic=False,
    )


class LimitSettings(Settings):
    __slots__ = ()

    title = "Limits"

    max_connections = Property(
        "max.connections",
        INT,
        "10000",
        "Maximum number of open connections per broker.",
        minimum=0,
        kafka_default=_UNLIMITED,
    )
    max_connections_per_ip = Property(
        "max.connections.per.ip",
        INT,
        "1000",
        "Maximum number of open connections per IP address.",
        minimum=0,
        kafka_default=_UNLIMITED,
    )
    max_connections_per_ip_overrides = Property(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "Maximum number of open connections for single addresses, as `address:number,...`.",
        pattern=rf"({_LIMITED_HOST}(\s*,\s*{_LIMITED_HOST})*)?",
        pattern_words="address:number,...",
    )
    max_connection_creation_rate = Property(
        "max.connection.creation.rate",
        INT,
        "500",
        "Maximum number of new connections per second.",
        unit="per second",
        minimum=0,
        kafka_default=_UNLIMITED,
    )
    connections_max_idle_ms = Property(
        "connections.max.idle.ms",
        LONG,
        "600000",
        "How long a connection may be idle before it is closed; -1 means no limit.",
        unit="ms",
        minimum=1,
        extra_numbers=(-1,),
        dynamic=False,
    )
    connection_setup_timeout_ms = Property(
        "connection.setup.timeout.ms",
        LONG,
        "10000",
        "How long a new connection may take to send its first complete request.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    listen_backlog = Property(
        "socket.listen.backlog.size",
        INT,
        "1024",
        "Maximum number of pending connections that are not accepted yet. Above it, a connection "
        "attempt is delayed by a second or more.",
        minimum=1,
        dynamic=False,
        kafka_default="50",
    )
    request_max_bytes = Property(
        "socket.request.max.bytes",
        INT,
        "104857600",
        "Maximum size of a request. A larger request closes the connection.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    request_max_elements = Property(
        "request.max.elements",
        INT,
        "100000",
        "Maximum number of array elements (partitions, topics, groups, settings) in one request, "
        "over all its arrays. A larger request closes the connection.",
        minimum=1000,
        kbroker_only=True,
    )
    connection_pending_response_bytes_max = Property(
        "connection.max.pending.response.bytes",
        INT,
        "1048576",
        "Maximum size of the pending responses of a connection: bytes that the client has not "
        "read yet, and rows of responses that are not written yet. Above it, the broker stops "
        "reading requests from the connection until the client reads responses.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    pending_fetch_partitions_max = Property(
        "pending.fetch.max.partitions",
        INT,
        "500000",
        "Maximum number of partitions of all fetch requests that wait for records. One address can "
        "use at most half of it. Above it, the broker answers a fetch of more than eight "
        "partitions at once, and throttles the client for at most half a second. Each partition "
        "takes about 0.6 kB of memory.",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    queued_max_request_bytes = Property(
        "queued.max.request.bytes",
        LONG,
        "268435456",
        "Maximum size of received data of large requests (above 64 KiB) over all connections; -1 "
        "and 0 mean no limit. Above it, the broker pauses these requests, except one at a time "
        "and the requests with the fewest missing bytes (up to an eighth of the limit). While "
        "requests are paused, one address can use at most half of the limit, and the broker "
        "closes connections that send less than 64 KiB per second.",
        unit="bytes",
        minimum=1,
        extra_numbers=(-1, 0),
        dynamic=False,
        kafka_default="-1",
    )
    decompressed_batch_max_bytes = Property(
        "decompressed.batch.max.bytes",
        LONG,
        "67108864",
        "Maximum size of a record batch after decompression. The broker rejects a larger batch "
        "with MESSAGE_TOO_LARGE.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    batch_max_records = Property(
        "batch.max.records",
        INT,
        "500000",
        "Maximum number of records in a batch. The broker rejects a larger batch with "
        "MESSAGE_TOO_LARGE, so that the Java client splits it.",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    batch_max_headers = Property(
        "batch.max.headers",
        INT,
        "500000",
        "Maximum number of headers of all records in a batch. The broker rejects a larger batch with "
        "MESSAGE_TOO_LARGE.",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    record_max_headers = Property(
        "record.max.headers",
        INT,
        "10000",
        "Maximum number of headers of a record. The broker rejects a batch with such a record with "
        "INVALID_RECORD.",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    fetch_max_bytes = Property(
        "fetch.max.bytes",
        INT,
        "57671680",
        "Maximum size of the records in one fetch response.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
    )
    fetch_sessions_max = Property(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "Maximum number of incremental fetch sessions. Together they may contain 200 partitions "
        "per session. Above either limit, a fetch request is served without a session.",
        minimum=0,
        dynamic=False,
    )
    request_max_partitions = Property(
        "max.request.partition.size.limit",
        INT,
        "2000",
        "Maximum number of partitions in a DescribeTopicPartitions response.",
        minimum=1,
        dynamic=False,
    )
    quota_window_num = _windows("quota.window.num", "client")
    quota_window_size_seconds = _window_size("quota.window.size.seconds", "client")
    controller_quota_window_num = _windows("controller.quota.window.num", "controller mutation")
    controller_quota_window_size_seconds = _window_size(
        "controller.quota.window.size.seconds", "controller mutation"
    )
    telemetry_max_bytes = Property(
        "telemetry.max.bytes",
        INT,
        "1048576",
        "Maximum size of the metrics that a client sends in one request, after compression "
        "(KIP-714).",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    leader_replication_throttled_rate = _quota(
        "leader.replication.throttled.rate",
        "Maximum bytes per second that other brokers replicate from this broker.",
    )
    follower_replication_throttled_rate = _quota(
        "follower.replication.throttled.rate",
        "Maximum bytes per second that this broker replicates from leaders.",
    )
    replica_alter_log_dirs_io_max_bytes_per_second = _quota(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "Maximum bytes per second for moving replicas between log directories.",
        SettingEffect.LATER,
    )
    login_bytes_max = Property(
        "sasl.server.max.receive.size",
        INT,
        "524288",
        "Maximum size of a request before authentication completes.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    failed_login_delay_ms = Property(
        "connection.failed.authentication.delay.ms",
        INT,
        "100",
        "How long the broker waits before it closes a connection on which authentication failed.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )


def _later(name: str, kind: Kind[T], default: str | None, doc: str, dynamic: bool) -> Property[T]:
    return Property(name, kind, default, doc, dynamic=dynamic, effect=SettingEffect.LATER)


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_SECURITY_PACKAGE = "org.apache.kafka.common.security."
_PRINCIPAL_BUILDER = f"{_SECURITY_PACKAGE}authenticator.DefaultKafkaPrincipalBuilder"
_ENGINE_FACTORY = f"{_SECURITY_PACKAGE}ssl.DefaultSslEngineFactory"


def _token(name: str, kind: Kind[T], default: str | None, doc: str, **more: Any) -> Property[T]:
    return Property(f"sasl.oauthbearer.{name}", kind, default, doc, dynamic=False, **more)


class TokenSettings(Settings):
    __slots__ = ()

    title = "Security"

    connections_max_reauth_ms = Property(
        "connections.max.reauth.ms",
        LONG,
        "0",
        "How long an authenticated session lasts before the client must re-authenticate on the "
        "same connection. With 0 it lasts as long as the connection or, if shorter, the token. If "
        "the client sends any other request after that, the connection is closed.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    sasl_server_callback_handler_class = Property(
        "sasl.server.callback.handler.class",
        CLASS,
        None,
        "Class that verifies credentials. Only Kafka's handler for OAUTHBEARER is accepted "
        "(`...oauthbearer.OAuthBearerValidatorCallbackHandler`), and it is not required.",
        dynamic=False,
    )
    sasl_oauthbearer_jwks_endpoint_url = _token(
        "jwks.endpoint.url",
        STRING,
        None,
        "URL of the JSON Web Key Set with which tokens are verified: `https://...` or "
        "`file:///...`.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms = _token(
        "jwks.endpoint.refresh.ms",
        LONG,
        "3600000",
        "Interval between refreshes of the JSON Web Key Set. A token with an unknown key triggers "
        "a refresh at once.",
        unit="ms",
        minimum=1000,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = _token(
        "jwks.endpoint.retry.backoff.ms",
        LONG,
        "100",
        "Initial wait before a failed request to the JWKS endpoint is retried. The wait doubles "
        "with each retry.",
        unit="ms",
        minimum=1,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = _token(
        "jwks.endpoint.retry.backoff.max.ms",
        LONG,
        "10000",
        "Maximum wait before a failed request to the JWKS endpoint is retried.",
        unit="ms",
        minimum=1,
    )
    sasl_oauthbearer_expected_issuer = _token(
        "expected.issuer",
        STRING,
        None,
        "Expected issuer of tokens (claim `iss`). Required for OAUTHBEARER, unless "
        "`sasl.oauthbearer.allow.unverified.issuer` is true.",
    )
    sasl_oauthbearer_expected_audience = _token(
        "expected.audience",
        LIST,
        "",
        "Expected audiences of tokens: the claim `aud` must contain one of them. Required for "
        "OAUTHBEARER, unless `sasl.oauthbearer.allow.unverified.audience` is true.",
    )
    sasl_oauthbearer_allow_unverified_issuer = _token(
        "allow.unverified.issuer",
        BOOLEAN,
        "false",
        "If true and `sasl.oauthbearer.expected.issuer` is unset, tokens of every issuer are "
        "accepted if a key of the key set signed them.",
    )
    sasl_oauthbearer_allow_unverified_audience = _token(
        "allow.unverified.audience",
        BOOLEAN,
        "false",
        "If true and `sasl.oauthbearer.expected.audience` is empty, tokens for every audience are "
        "accepted, including tokens that were issued for other services.",
    )
    sasl_oauthbearer_clock_skew_seconds = _token(
        "clock.skew.seconds",
        INT,
        "30",
        "Maximum clock difference that is tolerated when the validity period of a token is "
        "checked.",
        unit="seconds",
        minimum=0,
    )
    sasl_oauthbearer_scope_claim_name = _token(
        "scope.claim.name", STRING, "scope", "Name of the token claim that contains the scopes."
    )
    sasl_oauthbearer_sub_claim_name = _token(
        "sub.claim.name", STRING, "sub", "Name of the token claim that contains the user name."
    )
    sasl_oauthbearer_token_endpoint_url = _token(
        "token.endpoint.url",
        STRING,
        None,
        "URL from which brokers get the tokens for connections to other brokers: `https://...` or "
        "`file:///...`.",
    )
    sasl_oauthbearer_client_credentials_client_id = _token(
        "client.credentials.client.id",
        STRING,
        None,
        "Client ID that brokers send to the token endpoint.",
    )
    sasl_oauthbearer_client_credentials_client_secret = _token(
        "client.credentials.client.secret",
        PASSWORD,
        None,
        "Client secret that brokers send to the token endpoint.",
    )
    sasl_oauthbearer_scope = _token(
        "scope", STRING, None, "Scope that brokers request from the token endpoint."
    )
    sasl_oauthbearer_jwt_validator_class = _token(
        "jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "Class that validates tokens. Only Kafka's own classes are accepted; kbroker implements "
        "their behaviour.",
    )


class DelegationTokenSettings(Settings):
    __slots__ = ()

    title = "Security"

    delegation_token_secret_key = Property(
        "delegation.token.secret.key",
        PASSWORD,
        None,
        "Secret used to generate and verify delegation tokens. It must be the same on all "
        "brokers. If unset, delegation tokens are disabled; a new value invalidates all tokens.",
        dynamic=False,
    )
    delegation_token_max_lifetime_ms = Property(
        "delegation.token.max.lifetime.ms",
        LONG,
        "604800000",
        "Maximum lifetime of a delegation token, including renewals.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    delegation_token_expiry_time_ms = Property(
        "delegation.token.expiry.time.ms",
        LONG,
        "86400000",
        "How long a delegation token is valid before it must be renewed.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    delegation_token_expiry_check_interval_ms = Property(
        "delegation.token.expiry.check.interval.ms",
        LONG,
        "3600000",
        "Interval between removals of expired delegation tokens.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )


class AuthorizationSettings(Settings):
    __slots__ = ()

    title = "Security"

    authorizer_class = Property(
        "authorizer.class.name",
        STRING,
        "",
        f"Class of the authorizer. With {STANDARD_AUTHORIZER}, ACLs are enforced; if empty, "
        "every client may do everything.",
        choices=("", STANDARD_AUTHORIZER),
        dynamic=False,
    )
    super_users = Property(
        "super.users",
        STRING,
        "",
        "Users that may do everything, regardless of ACLs, as `User:name;User:name`.",
        pattern=r"(\s*[^:;]+:[^;]*(;|$))*",
        pattern_words="User:name;User:name",
        dynamic=False,
    )
    allow_everyone_if_no_acl_found = Property(
        "allow.everyone.if.no.acl.found",
        BOOLEAN,
        "false",
        "If true, resources without ACLs are accessible to everyone.",
        dynamic=False,
    )
    principal_builder_class = Property(
        "principal.builder.class",
        CLASS,
        _PRINCIPAL_BUILDER,
        "Class that builds the principal of a client. Only Kafka's default class is accepted; "
        "kbroker implements its behaviour.",
        choices=(_PRINCIPAL_BUILDER,),
        effect=SettingEffect.NONE,
    )
    sasl_enabled_mechanisms = Property(
        "sasl.enabled.mechanisms",
        LIST,
        "GSSAPI",
        "List of enabled SASL mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    )
    sasl_plain_over_plaintext_enable = Property(
        "sasl.plain.over.plaintext.enable",
        BOOLEAN,
        "false",
        "If true, PLAIN authentication is allowed on SASL_PLAINTEXT listeners that other machines "
        "can reach. Passwords cross the network unencrypted; enable it only on trusted networks, "
        "such as that of a compose file.",
        dynamic=False,
        kbroker_only=True,
    )


class AuthenticationSettings(Settings):
    __slots__ = ()

    title = "Security"

    sasl_jaas_config = Property(
        "sasl.jaas.config",
        PASSWORD,
        None,
        "Users and passwords of SASL listeners, in JAAS format: a login module with `user_NAME` "
        "options. The prefix `listener.name.NAME.MECHANISM.` limits it to one listener and "
        "mechanism. Without the prefix it may contain several login modules, one of each class.",
    )
    sasl_mechanism_inter_broker_protocol = Property(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        "GSSAPI",
        "SASL mechanism for communication between brokers. The credentials are those in the "
        "`sasl.jaas.config` of that listener and mechanism.",
    )
    ssl_client_auth = Property(
        "ssl.client.auth",
        STRING,
        "none",
        "Client authentication by certificate: `required`, `requested` (optional) or `none`.",
        choices=("required", "requested", "none"),
    )
    ssl_cipher_suites = Property(
        "ssl.cipher.suites",
        LIST,
        "",
        "List of enabled TLS cipher suites, by their Java names. If empty, OpenSSL's default list "
        "is used.",
    )
    ssl_enabled_protocols = Property(
        "ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", "List of enabled TLS versions."
    )
    ssl_protocol = Property(
        "ssl.protocol",
        STRING,
        "TLSv1.3",
        "TLS protocol name, as in Java. Use `ssl.enabled.protocols` to select the TLS versions, "
        "as in Kafka.",
        choices=("TLS", "TLSv1.2", "TLSv1.3"),
        effect=SettingEffect.NONE,
    )
    ssl_endpoint_identification_algorithm = Property(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "How a broker verifies the host name in the certificate of another broker: `https`, or "
        "empty to disable the verification.",
    )
    ssl_engine_factory_class = Property(
        "ssl.engine.factory.class",
        CLASS,
        None,
        "Class that creates TLS engines. Only Kafka's default class is accepted, and it is not "
        "required.",
        choices=(_ENGINE_FACTORY,),
        effect=SettingEffect.NONE,
    )
    ssl_principal_mapping_rules = Property(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        "Rules that map the subject of a client certificate to a user name: "
        "`RULE:pattern/replacement/`, with an optional final L or U for lower or upper case, or "
        "DEFAULT for the whole subject. The first rule whose pattern (RE2 syntax) matches the "
        "whole subject is applied.",
        dynamic=False,
    )
    ssl_key_password = Property("ssl.key.password", PASSWORD, None, "Password of the private key.")
    ssl_keystore_certificate_chain = Property(
        "ssl.keystore.certificate.chain",
        PASSWORD,
        None,
        "Certificate chain of this broker, in PEM format.",
    )
    ssl_keystore_key = Property(
        "ssl.keystore.key", PASSWORD, None, "Private key of this broker, in PEM format."
    )
    ssl_keystore_location = Property(
        "ssl.keystore.location",
        STRING,
        None,
        "File with the private key and the certificate chain of this broker.",
    )
    ssl_keystore_password = Property(
        "ssl.keystore.password", PASSWORD, None, "Password of the file `ssl.keystore.location`."
    )
    ssl_keystore_type = Property(
        "ssl.keystore.type",
        STRING,
        "JKS",
        "Format of the file `ssl.keystore.location`. kbroker detects the format: PEM or PKCS#12.",
        effect=SettingEffect.NONE,
    )
    ssl_truststore_certificates = Property(
        "ssl.truststore.certificates",
        PASSWORD,
        None,
        "Certificates of trusted certificate authorities, in PEM format.",
    )
    ssl_truststore_location = Property(
        "ssl.truststore.location",
        STRING,
        None,
        "File with the certificates of trusted certificate authorities.",
    )
    ssl_truststore_password = Property(
        "ssl.truststore.password", PASSWORD, None, "Password of the file `ssl.truststore.location`."
    )
    ssl_truststore_type = Property(
        "ssl.truststore.type",
        STRING,
        "JKS",
        "Format of the file `ssl.truststore.location`. kbroker detects the format: PEM or PKCS#12.",
        effect=SettingEffect.NONE,
    )


def _ignored(
    name: str,
    kind: Kind[T],
    default: str | None,
    doc: str,
    dynamic: bool,
    minimum: int | None = None,
) -> Property[T]:
    return Property(
        name, kind, default, doc, minimum=minimum, dynamic=dynamic, effect=SettingEffect.NONE
    )


class IgnoredSettings(Settings):
    __slots__ = ()

    title = "Accepted for compatibility with Kafka's configuration files"

    process_roles = Property(
        "process.roles",
        LIST,
        "broker,controller",
        "Roles of this process. Every kbroker node is broker and controller.",
        choices=("broker", "controller"),
        dynamic=False,
        effect=SettingEffect.NONE,
        kafka_default="none: must be set",
    )
    controller_quorum_voters = _ignored(
        "controller.quorum.voters",
        LIST,
        "",
        "Voters of Kafka's metadata quorum. kbroker does not have such a quorum.",
        False,
    )
    controller_quorum_bootstrap_servers = _ignored(
        "controller.quorum.bootstrap.servers",
        LIST,
        "",
        "Addresses for finding Kafka's metadata quorum. kbroker does not have such a quorum.",
        False,
    )
    controller_listener_names = Property(
        "controller.listener.names",
        LIST,
        "",
        "Names of the listeners for Kafka's controllers. kbroker does not open these listeners.",
        dynamic=False,
        kafka_default="none: must be set",
    )
    num_network_threads = _ignored(
        "num.network.threads",
        INT,
        "3",
        "Number of threads for network requests and responses.",
        True,
        1,
    )
    num_io_threads = _ignored(
        "num.io.threads", INT, "8", "Number of threads that process requests.", True, 1
    )
    background_threads = _ignored(
        "background.threads", INT, "10", "Number of threads for background tasks.", True, 1
    )
    num_recovery_threads_per_data_dir = _ignored(
        "num.recovery.threads.per.data.dir",
        INT,
        "2",
        "Number of threads per log directory for log recovery at start-up.",
        True,
        1,
    )
    num_replica_fetchers = _ignored(
        "num.replica.fetchers", INT, "1", "Number of fetcher threads per source broker.", True, 1
    )
    socket_send_buffer_bytes = _ignored(
        "socket.send.buffer.bytes",
        INT,
        "102400",
        "Size of the send buffer of a connection. In kbroker the operating system chooses it.",
        False,
    )
    socket_receive_buffer_bytes = _ignored(
        "socket.receive.buffer.bytes",
        INT,
        "102400",
        "Size of the receive buffer of a connection. In kbroker the operating system chooses it.",
        False,
    )
    queued_max_requests = _ignored(
        "queued.max.requests",
        INT,
        "500",
        "Maximum number of requests that wait for a thread. kbroker limits them with "
        "`queued.max.request.bytes`.",
        False,
        1,
    )


class HttpSettings(Settings):
    __slots__ = ()

    title = "HTTP"

    http_host = Property(
        "http.host",
        STRING,
        "127.0.0.1",
        "Address on which the HTTP server (console, metrics and probes) listens. On a "
        "non-loopback address, everyone who can connect can read the metrics and, if clients do "
        "not authenticate to the broker, the console.",
        dynamic=False,
        kbroker_only=True,
    )
    http_port = Property(
        "http.port",
        INT,
        "-1",
        "Port of the HTTP server; 0 means a free port, -1 disables the server. Further nodes of "
        "the same process use the following ports. Requires `kbroker[console]`.",
        minimum=0,
        maximum=65535,
        extra_numbers=(-1,),
        dynamic=False,
        kbroker_only=True,
    )
    http_allowed_hosts = Property(
        "http.allowed.hosts",
        LIST,
        "",
        "Additional Host header values that the HTTP server accepts, as a protection against DNS "
        "rebinding. IP addresses, localhost, names without dots and the name of this machine are "
        "always accepted.",
        dynamic=False,
        kbroker_only=True,
    )
    http_max_connections = Property(
        "http.max.connections",
        INT,
        "100",
        "Maximum number of open HTTP connections. Above it, the connection that has been idle for "
        "longest is closed.",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )
    http_max_request_bytes = Property(
        "http.max.request.bytes",
        INT,
        "1048576",
        "Maximum size of the body of an HTTP request.",
        unit="bytes",
        minimum=0,
        dynamic=False,
        kbroker_only=True,
    )
    http_console_write = Property(
        "http.console.write",
        BOOLEAN,
        "false",
        "If true, the console permits changes on a non-loopback address as well: producing "
        "records, changing group offsets, deleting groups and aborting hanging transactions.",
        dynamic=False,
        kbroker_only=True,
    )
    http_request_timeout_ms = Property(
        "http.request.timeout.ms",
        INT,
        "30000",
        "Maximum duration of an HTTP request, and maximum time for which a client may stop "
        "reading the response.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kbroker_only=True,
    )


class OtlpSettings(Settings):
    __slots__ = ()

    title = "OpenTelemetry"

    otlp_endpoint = Property(
        "otlp.endpoint",
        STRING,
        "",
        "URL to which metrics are sent with OTLP over HTTP, such as "
        "`http://collector:4318/v1/metrics`. If empty, no metrics are sent. Requires "
        "`kbroker[otlp]`.",
        dynamic=False,
        kbroker_only=True,
    )
    otlp_interval_ms = Property(
        "otlp.interval.ms",
        LONG,
        "60000",
        "Interval between two exports of metrics to `otlp.endpoint`.",
        unit="ms",
        minimum=1000,
        dynamic=False,
        kbroker_only=True,
    )


class RegistrySettings(Settings):
    __slots__ = ()

    title = "Schema registry"

    registry_host = Property(
        "registry.host",
        STRING,
        "127.0.0.1",
        "Address on which the schema registry listens for HTTP. On a non-loopback address, "
        "everyone who can connect can register and delete schemas. If clients must authenticate "
        "to the broker, the registry listens on the loopback address only.",
        dynamic=False,
        kbroker_only=True,
    )
    registry_port = Property(
        "registry.port",
        INT,
        "-1",
        "Port of the schema registry; 0 means a free port, -1 disables the registry. Further "
        "nodes of the same process use the following ports. Requires `kbroker[registry]`. The "
        "`http.*` limits also apply to the registry.",
        minimum=0,
        maximum=65535,
        extra_numbers=(-1,),
        dynamic=False,
        kbroker_only=True,
    )


class BrokerSettings(
    NodeSettings,
    ClusterSettings,
    StorageSettings,
    TopicDefaults,
    LogSettings,
    ClassicGroupSettings,
    GroupDefaults,
    TransactionSettings,
    ReplicationSettings,
    LimitSettings,
    AuthorizationSettings,
    TokenSettings,
    DelegationTokenSettings,
    AuthenticationSettings,
    HttpSettings,
    OtlpSettings,
    RegistrySettings,
    IgnoredSettings,
):
    """All settings of a node, in the order of the documentation."""

    __slots__ = ()
