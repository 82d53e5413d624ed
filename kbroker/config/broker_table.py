"""The table of broker settings: a class for each subject, and an attribute for each setting.

It has the settings of Apache Kafka 4.3 that kbroker applies or will apply, those that appear in
most configuration files, and kbroker's own. `kafka_only` has Kafka's other settings.
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
    Effect,
    Kind,
    Property,
    Settings,
    Value,
)

T = TypeVar("T", bound=Value)

_FOREVER = str(2**63 - 1)
_UNLIMITED = str(2**31 - 1)
_LIMITED_HOST = r"[^,\s][^,]*:\d{1,10}"
_LISTENER_EXAMPLE = "PLAINTEXT://localhost:9092"


RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _replicas(nodes: int) -> int:
    return min(3, nodes)


def _min_in_sync(nodes: int) -> int:
    # One node may be away without stopping the coordinators.
    return max(1, _replicas(nodes) - 1)


class NodeSettings(Settings):
    __slots__ = ()

    title = "Node and listeners"

    node_id = Property(
        "node.id",
        INT,
        "1",
        "Number of this node, unique in the cluster.",
        minimum=0,
        dynamic=False,
        kafka_default="none: must be set",
    )
    broker_id = Property(
        "broker.id",
        INT,
        "1",
        "Older name of `node.id`; setting one sets both.",
        minimum=-1,
        dynamic=False,
        kafka_default="-1",
    )
    broker_rack = Property(
        "broker.rack",
        STRING,
        None,
        "Place of this node (rack, zone); clients see it in the metadata.",
        dynamic=False,
    )
    all_listeners = Property(
        "listeners",
        LIST,
        _LISTENER_EXAMPLE,
        "Addresses to listen on, as `NAME://host:port`. An empty host, 0.0.0.0 and [::] are every "
        "interface, and localhost is the loopback interface, each with IPv4 and IPv6.",
        dynamic=False,
        kafka_dynamic=True,
        kafka_default="PLAINTEXT://:9092",
    )
    all_advertised_listeners = Property(
        "advertised.listeners",
        LIST,
        None,
        "Addresses that clients are told to connect to, as `NAME://host:port`. An empty host is this "
        "machine's canonical host name. Each client of a listener without one is told the address "
        "that it dialled.",
        dynamic=False,
    )
    listener_security_protocol_map = Property(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of every listener name, as `NAME:PROTOCOL,...`.",
        dynamic=False,
        kafka_dynamic=True,
    )
    _inter_broker_listener_name = Property(
        "inter.broker.listener.name",
        STRING,
        None,
        "Name of the listener that nodes use among themselves; unset, the one named as "
        "security.inter.broker.protocol, or the first one.",
        dynamic=False,
    )
    inter_broker_protocol = Property(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "Security protocol between nodes: that of the listener of this name.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        dynamic=False,
    )


class ClusterSettings(Settings):
    __slots__ = ()

    title = "Several nodes"

    broker_session_timeout_ms = Property(
        "broker.session.timeout.ms",
        INT,
        "600",
        "How long a node that says nothing counts as alive in a cluster of several nodes; then "
        "others take over what it leads.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kafka_default="9000",
    )
    broker_heartbeat_interval_ms = Property(
        "broker.heartbeat.interval.ms",
        INT,
        "200",
        "How often a node of several says that it is alive; a third of "
        "`broker.session.timeout.ms` or less.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kafka_default="2000",
    )
    expired_lease_acks_enable = Property(
        "expired.lease.acks.enable",
        BOOLEAN,
        "false",
        "If true, a leader whose lease may have expired accepts acks=0 and acks=1 writes. These records "
        "are lost if another node leads by then. Writes with acks=all are accepted in any case.",
        dynamic=False,
        own=True,
    )
    controlled_shutdown_enable = Property(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "Hand leaderships over to other nodes before a stop.",
        dynamic=False,
    )
    auto_leader_rebalance_enable = Property(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "Give leadership back to preferred replicas, the first ones of each partition.",
        dynamic=False,
    )
    leader_imbalance_check_interval_seconds = Property(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "How often the controller looks for partitions whose preferred replica does not lead.",
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
        "Directories that hold this node's logs; `log.dir` when unset. A new partition goes where the "
        "fewest are, a client can move it to another. The first directory holds the metadata too.",
        dynamic=False,
    )
    log_dir = Property(
        "log.dir",
        LIST,
        "./kbroker-data",
        "Directory that holds this node's logs.",
        longest=1,
        dynamic=False,
        kafka_default="/tmp/kafka-logs",
    )
    cordoned_log_dirs = Property(
        "cordoned.log.dirs",
        LIST,
        "",
        "Directories of `log.dirs` that take no new partitions; `*` stands for all of them (KIP-1066).",
    )
    discarded_log_dir_ids = Property(
        "log.dirs.discarded.ids",
        LIST,
        None,
        "Directory IDs (`directory.id` in `meta.properties`) of log directories that are permanently "
        "lost. If a log directory is missing and its ID is not listed here, the broker does not start, "
        "because the partitions of that directory would start empty.",
        dynamic=False,
        own=True,
    )
    flush_policy = Property(
        "flush.policy",
        STRING,
        "fsync",
        "When appended records reach the disk: `fsync` before their acknowledgement, `interval` "
        "every `flush.interval.ms`, `os` when the operating system writes them. With the last two "
        "a power cut can take acknowledged records back. Kafka acts like `os`.",
        choices=("fsync", "interval", "os"),
        dynamic=False,
        own=True,
    )
    flush_interval_ms = Property(
        "flush.interval.ms",
        LONG,
        "1000",
        "Time between two syncs with `flush.policy=interval`.",
        unit="ms",
        minimum=1,
        dynamic=False,
        own=True,
    )
    memory_limit_bytes = Property(
        "memory.limit.bytes",
        LONG,
        str(2**30),
        "What `--memory` holds at most. Above it producers get KAFKA_STORAGE_ERROR; nothing that "
        "retention would keep is dropped.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        own=True,
    )


class TopicDefaults(Settings):
    __slots__ = ()

    title = "Topics"

    num_partitions = Property(
        "num.partitions",
        INT,
        "1",
        "Partitions of a topic that is created without a number.",
        minimum=1,
        dynamic=False,
    )
    default_replication_factor = Property(
        "default.replication.factor",
        INT,
        "1",
        "Replicas of a topic that is created without a number.",
        minimum=1,
        dynamic=False,
    )
    replication_factor_clamp = Property(
        "replication.factor.clamp",
        BOOLEAN,
        "false",
        "Lower a replication factor above the number of nodes to that number, with one warning, "
        "instead of refusing the topic. For applications that insist on 3.",
        dynamic=False,
        own=True,
    )
    allow_auto_create_topics = Property(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Create a topic when a client that allows it asks for one that does not exist.",
        dynamic=False,
    )
    allow_delete_topics = Property(
        "delete.topic.enable",
        BOOLEAN,
        "true",
        "Whether topics may be deleted.",
        dynamic=False,
    )
    min_insync_replicas = Property(
        "min.insync.replicas",
        INT,
        "1",
        "Replicas that must have a record before `acks=all` is answered.",
        minimum=1,
    )
    unclean_leader_election_enable = Property(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "Let a replica that is not in sync become leader when no other lives. Here only an explicit "
        "call elects such a leader (kafka-leader-election --election-type unclean).",
        effect=Effect.NONE,
    )
    compression_type = Property(
        "compression.type",
        STRING,
        "producer",
        "Codec in which topics are stored; `producer` keeps what the producer chose.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level = Property(
        "compression.gzip.level",
        INT,
        "-1",
        "Level for gzip; -1 is the library's choice.",
        minimum=1,
        maximum=9,
        also=(-1,),
    )
    compression_lz4_level = Property(
        "compression.lz4.level",
        INT,
        "9",
        "Level for lz4.",
        minimum=1,
        maximum=17,
    )
    compression_zstd_level = Property(
        "compression.zstd.level",
        INT,
        "3",
        "Level for zstd.",
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
        "Largest record batch that a topic takes, as sent (after compression).",
        unit="bytes",
        minimum=0,
    )
    max_decompressed_message_bytes = Property(
        "max.decompressed.message.bytes",
        INT,
        "2147483639",
        "Largest record of a compressed batch after decompression, for topics without their own value.",
        unit="bytes",
        minimum=1,
    )
    log_cleanup_policy = Property(
        "log.cleanup.policy",
        LIST,
        "delete",
        "What happens to old segments, unless the topic says otherwise.",
        choices=("compact", "delete"),
    )
    log_retention_ms = Property(
        "log.retention.ms",
        LONG,
        None,
        "Age beyond which a segment is dropped; -1 is unlimited. Goes before "
        "`log.retention.minutes`.",
        unit="ms",
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    log_retention_minutes = Property(
        "log.retention.minutes",
        INT,
        None,
        "`log.retention.ms` in minutes. Goes before `log.retention.hours`.",
        unit="minutes",
        minimum=-1,
        dynamic=False,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    log_retention_hours = Property(
        "log.retention.hours",
        INT,
        "168",
        "`log.retention.ms` in hours.",
        unit="hours",
        minimum=-1,
        dynamic=False,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    log_retention_bytes = Property(
        "log.retention.bytes",
        LONG,
        "-1",
        "Size of a partition beyond which its oldest segments are dropped; -1 is unlimited.",
        unit="bytes",
    )
    retention_check_interval_ms = Property(
        "log.retention.check.interval.ms",
        LONG,
        "300000",
        "Time between two looks for segments to drop.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    log_segment_bytes = Property(
        "log.segment.bytes",
        INT,
        "1073741824",
        "Size at which a new segment file begins.",
        unit="bytes",
        minimum=1048576,
    )
    log_roll_ms = Property(
        "log.roll.ms",
        LONG,
        None,
        "Age at which a new segment begins. Goes before `log.roll.hours`.",
        unit="ms",
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    log_roll_hours = Property(
        "log.roll.hours",
        INT,
        "168",
        "`log.roll.ms` in hours.",
        unit="hours",
        minimum=1,
        dynamic=False,
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    log_roll_jitter_ms = Property(
        "log.roll.jitter.ms",
        LONG,
        None,
        "Random time taken off the age at which a segment rolls. Goes before "
        "`log.roll.jitter.hours`.",
        unit="ms",
        minimum=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    log_roll_jitter_hours = Property(
        "log.roll.jitter.hours",
        INT,
        "0",
        "`log.roll.jitter.ms` in hours.",
        unit="hours",
        minimum=0,
        dynamic=False,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    log_index_interval_bytes = Property(
        "log.index.interval.bytes",
        INT,
        "4096",
        "Bytes of log between two entries of the offset index.",
        unit="bytes",
        minimum=0,
    )
    log_index_size_max_bytes = Property(
        "log.index.size.max.bytes",
        INT,
        "10485760",
        "Largest size of a segment's index; a full index begins a new segment.",
        unit="bytes",
        minimum=4,
    )
    log_message_timestamp_type = Property(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose time a record carries: the producer's, or the broker's when it is appended.",
        choices=("CreateTime", "LogAppendTime"),
    )
    log_message_timestamp_after_max_ms = Property(
        "log.message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "How far a record's timestamp may lie ahead of the broker's clock.",
        unit="ms",
        minimum=0,
    )
    log_message_timestamp_before_max_ms = Property(
        "log.message.timestamp.before.max.ms",
        LONG,
        _FOREVER,
        "How far a record's timestamp may lie behind the broker's clock.",
        unit="ms",
        minimum=0,
    )
    log_flush_interval_messages = Property(
        "log.flush.interval.messages",
        LONG,
        _FOREVER,
        "Once this many records of a log are not on disk, the next acknowledgement waits for a "
        "sync. With `flush.policy=fsync` every one does.",
        minimum=1,
    )
    log_flush_interval_ms = Property(
        "log.flush.interval.ms",
        LONG,
        None,
        "A log is synced when its oldest record that is not on disk is this old. With "
        "`flush.policy=fsync` none that is acknowledged waits.",
        unit="ms",
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    log_flush_scheduler_interval_ms = Property(
        "log.flush.scheduler.interval.ms",
        LONG,
        _FOREVER,
        "Stands for `log.flush.interval.ms` where that is unset.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    log_flush_offset_checkpoint_interval_ms = Property(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "Time between two recovery checkpoints. kbroker writes one at least every 5 seconds.",
        unit="ms",
        minimum=0,
        dynamic=False,
        effect=Effect.NONE,
    )
    log_flush_start_offset_checkpoint_interval_ms = Property(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "Time between two checkpoints of the log start. kbroker writes it when the start moves.",
        unit="ms",
        minimum=0,
        dynamic=False,
        effect=Effect.NONE,
    )
    log_segment_delete_delay_ms = Property(
        "log.segment.delete.delay.ms",
        LONG,
        "60000",
        "Wait before a dropped segment's files are removed. kbroker removes them at once.",
        unit="ms",
        minimum=0,
        effect=Effect.NONE,
    )
    log_preallocate = Property(
        "log.preallocate",
        BOOLEAN,
        "false",
        "Reserve a new segment's disk space at once. kbroker's segments grow as they are written.",
        effect=Effect.NONE,
    )
    log_local_retention_bytes = Property(
        "log.local.retention.bytes",
        LONG,
        "-2",
        "Size kept on local disk with tiered storage, which kbroker does not have.",
        unit="bytes",
        minimum=-2,
        effect=Effect.NONE,
    )
    log_local_retention_ms = Property(
        "log.local.retention.ms",
        LONG,
        "-2",
        "Time kept on local disk with tiered storage, which kbroker does not have.",
        unit="ms",
        minimum=-2,
        effect=Effect.NONE,
    )
    log_cleaner_delete_retention_ms = Property(
        "log.cleaner.delete.retention.ms",
        LONG,
        "86400000",
        "How long a compacted topic keeps the marker of a deleted key.",
        unit="ms",
        minimum=0,
    )
    log_cleaner_max_compaction_lag_ms = Property(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        _FOREVER,
        "Longest time that a record may wait for compaction.",
        unit="ms",
        minimum=1,
    )
    log_cleaner_min_compaction_lag_ms = Property(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        "0",
        "Shortest time that a record stays uncompacted.",
        unit="ms",
        minimum=0,
    )
    log_cleaner_min_cleanable_ratio = Property(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        "0.5",
        "Share of a log that must be uncompacted before it is compacted again.",
        minimum=0,
        maximum=1,
    )
    log_cleaner_enable = Property(
        "log.cleaner.enable",
        BOOLEAN,
        "true",
        "Whether compacted topics are compacted at all.",
        dynamic=False,
    )
    log_scrub_bytes_per_second = Property(
        "log.scrub.bytes.per.second",
        LONG,
        "4194304",
        "How fast the records on disk are read again and compared with their checksums, in the "
        "background; 0 never does it. A partition with damage goes offline.",
        unit="bytes",
        minimum=0,
        own=True,
    )
    log_scrub_interval_ms = Property(
        "log.scrub.interval.ms",
        LONG,
        "604800000",
        "Time from the begin of one such reading of everything to the begin of the next.",
        unit="ms",
        minimum=1,
        own=True,
    )
    log_cleaner_backoff_ms = Property(
        "log.cleaner.backoff.ms",
        LONG,
        "15000",
        "Time between two looks for compacted topics that are dirty enough.",
        unit="ms",
        minimum=0,
    )
    log_cleaner_dedupe_buffer_bytes = Property(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        "134217728",
        "Memory for the keys of one compaction, at 160 bytes a key (Kafka: 24): a part of a log "
        "with more keys takes several runs. It is taken by the process that compacts.",
        unit="bytes",
    )


class ClassicGroupSettings(Settings):
    __slots__ = ()

    title = "Consumer groups"

    group_initial_rebalance_delay_ms = Property(
        "group.initial.rebalance.delay.ms",
        INT,
        "0",
        "Wait of a new group for more members before its first assignment.",
        unit="ms",
        minimum=0,
        dynamic=False,
        kafka_default="3000",
    )
    group_min_session_timeout_ms = Property(
        "group.min.session.timeout.ms",
        INT,
        "6000",
        "Shortest session timeout that a member may ask for.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    group_max_session_timeout_ms = Property(
        "group.max.session.timeout.ms",
        INT,
        "1800000",
        "Longest session timeout that a member may ask for.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    group_max_size = Property(
        "group.max.size",
        INT,
        _UNLIMITED,
        "Most members of one group.",
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
        own=True,
    )
    group_metadata_max_bytes = Property(
        "group.metadata.max.bytes",
        INT,
        "16777216",
        "Maximum size of the metadata of all members of one classic group. A member that would exceed "
        "it is answered with GROUP_MAX_SIZE_REACHED.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    )
    group_coordinator_members_max_bytes = Property(
        "group.coordinator.members.max.bytes",
        LONG,
        "134217728",
        "Maximum size of what the members of all groups of a broker hold in memory: metadata, "
        "subscriptions, assignments and topologies. A member that would exceed it is answered with "
        "COORDINATOR_LOAD_IN_PROGRESS and tries again. Clients of one IP address hold at most as much "
        "as is left to the others.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    )
    group_coordinator_offsets_max_bytes = Property(
        "group.coordinator.offsets.max.bytes",
        LONG,
        "268435456",
        "Maximum size of the committed offsets of all groups of a broker in memory, each with its "
        "metadata string and about 400 bytes more. A commit that would exceed it is answered with "
        "INVALID_COMMIT_OFFSET_SIZE. Groups can still commit to partitions that have an offset.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    )
    offset_metadata_max_bytes = Property(
        "offset.metadata.max.bytes",
        INT,
        "4096",
        "Longest note that may go with a committed offset.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    )
    offsets_retention_minutes = Property(
        "offsets.retention.minutes",
        INT,
        "10080",
        "How long the offsets of an empty group are kept.",
        unit="minutes",
        minimum=1,
        dynamic=False,
    )
    offsets_retention_check_interval_ms = Property(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        "Time between two looks for expired offsets.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    offsets_commit_timeout_ms = Property(
        "offsets.commit.timeout.ms",
        INT,
        "5000",
        "How long what a coordinator stores, commits among it, waits for other replicas; then the "
        "client is told to ask again.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    offsets_topic_num_partitions = Property(
        "offsets.topic.num.partitions",
        INT,
        "50",
        "Partitions of `__consumer_offsets`; fixed once it exists.",
        minimum=1,
        dynamic=False,
    )
    offsets_topic_replication_factor = Property(
        "offsets.topic.replication.factor",
        SHORT,
        "1",
        "Replicas of `__consumer_offsets`: as many as there are nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    )
    offsets_topic_segment_bytes = Property(
        "offsets.topic.segment.bytes",
        INT,
        "104857600",
        "Segment size of `__consumer_offsets`.",
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
        "How long a partition remembers the sequence numbers of a producer that stays silent. It "
        "remembers 50,000 producers at most; beyond that the ones silent for longest go first.",
        unit="ms",
        minimum=1,
    )
    transaction_coordinator_ids_max_bytes = Property(
        "transaction.coordinator.ids.max.bytes",
        LONG,
        "134217728",
        "Maximum size of the transactional IDs of a broker in memory, about 1 kB each. A producer with "
        "a new ID that would exceed it is answered with COORDINATOR_LOAD_IN_PROGRESS and tries again. "
        "Clients of one IP address hold at most as much as is left to the others.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    )
    transactional_id_expiration_ms = Property(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        "How long an unused transactional id is remembered.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    transaction_max_timeout_ms = Property(
        "transaction.max.timeout.ms",
        INT,
        "900000",
        "Longest transaction that a producer may ask for.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    transaction_partition_verification_enable = Property(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        "Whether the first transactional batch in a partition is appended only after the "
        "transaction coordinator has confirmed that the partition is part of the transaction.",
    )
    transaction_remove_expired_interval_ms = Property(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "3600000",
        "Time between two looks for transactional ids that nobody used for long.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    transaction_state_log_num_partitions = Property(
        "transaction.state.log.num.partitions",
        INT,
        "50",
        "Partitions of `__transaction_state`; fixed once it exists.",
        minimum=1,
        dynamic=False,
    )
    transaction_state_log_replication_factor = Property(
        "transaction.state.log.replication.factor",
        SHORT,
        "1",
        "Replicas of `__transaction_state`: as many as there are nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    )
    transaction_state_log_min_isr = Property(
        "transaction.state.log.min.isr",
        INT,
        "1",
        "`min.insync.replicas` of `__transaction_state`: one less than its replicas, at least 1.",
        minimum=1,
        dynamic=False,
        kafka_default="2",
        per_nodes=_min_in_sync,
    )
    transaction_state_log_segment_bytes = Property(
        "transaction.state.log.segment.bytes",
        INT,
        "104857600",
        "Segment size of `__transaction_state`.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    share_state_num_partitions = Property(
        "share.coordinator.state.topic.num.partitions",
        INT,
        "50",
        "Partitions of `__share_group_state`; fixed once it exists.",
        minimum=1,
        dynamic=False,
    )
    share_state_replication_factor = Property(
        "share.coordinator.state.topic.replication.factor",
        SHORT,
        "1",
        "Replicas of `__share_group_state`: as many as there are nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    )
    share_state_min_isr = Property(
        "share.coordinator.state.topic.min.isr",
        SHORT,
        "1",
        "`min.insync.replicas` of `__share_group_state`: one less than its replicas, at least 1.",
        minimum=1,
        dynamic=False,
        kafka_default="2",
        per_nodes=_min_in_sync,
    )
    share_state_segment_bytes = Property(
        "share.coordinator.state.topic.segment.bytes",
        INT,
        "104857600",
        "Segment size of `__share_group_state`.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    share_state_updates_max = Property(
        "share.coordinator.snapshot.update.records.per.snapshot",
        INT,
        "500",
        "Changes of a share partition that are stored as such before all of it is stored again.",
        minimum=0,
        maximum=500,
        dynamic=False,
    )


def _quota(name: str, doc: str, effect: Effect = Effect.APPLIED) -> Property[int]:
    return Property(
        name,
        LONG,
        _FOREVER,
        f"{doc} Only for the replicas that a topic's `*.throttled.replicas` names.",
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
        "How long a leader holds back its answer to a follower that has everything.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    replica_fetch_min_bytes = Property(
        "replica.fetch.min.bytes",
        INT,
        "1",
        "A leader answers a follower as soon as it has this much for it.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    )
    replica_fetch_max_bytes = Property(
        "replica.fetch.max.bytes",
        INT,
        "1048576",
        "Most bytes of one partition in an answer to a follower; a larger batch comes alone.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    )
    replica_fetch_response_max_bytes = Property(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        "Most bytes in one answer to a follower; a larger batch comes alone.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    )
    replica_fetch_backoff_ms = Property(
        "replica.fetch.backoff.ms",
        INT,
        "1000",
        "Longest pause of a follower before it asks again a leader that refused it or cannot be "
        "reached; the first pauses are shorter.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    replica_socket_timeout_ms = Property(
        "replica.socket.timeout.ms",
        INT,
        "30000",
        "How long a node waits for another one's answer before it connects anew.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    replica_lag_time_max_ms = Property(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        "A follower that has been behind its leader for longer is not in sync any more.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    replica_selector_class = Property(
        "replica.selector.class",
        STRING,
        None,
        "Which replica consumers read from: unset, the leader; with Kafka's rack-aware one, a "
        "follower that is in their rack (`client.rack`), if there is one (KIP-392).",
        choices=(RACK_AWARE_SELECTOR,),
        dynamic=False,
    )


def _windows(name: str, whose: str) -> Property[int]:
    return Property(
        name,
        INT,
        "11",
        f"Number of windows over which the rates of {whose} are measured that have a quota.",
        minimum=1,
        dynamic=False,
    )


def _window_size(name: str, whose: str) -> Property[int]:
    return Property(
        name,
        INT,
        "1",
        f"Length of a window over which the rates of {whose} are measured that have a quota.",
        unit="s",
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
        "Most open connections of this node.",
        minimum=0,
        kafka_default=_UNLIMITED,
    )
    max_connections_per_ip = Property(
        "max.connections.per.ip",
        INT,
        "1000",
        "Most open connections from one address.",
        minimum=0,
        kafka_default=_UNLIMITED,
    )
    max_connections_per_ip_overrides = Property(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "Other limits for single addresses, as `address:number,...`.",
        pattern=rf"({_LIMITED_HOST}(\s*,\s*{_LIMITED_HOST})*)?",
        pattern_words="address:number,...",
    )
    max_connection_creation_rate = Property(
        "max.connection.creation.rate",
        INT,
        "500",
        "Most new connections per second.",
        unit="per second",
        minimum=0,
        kafka_default=_UNLIMITED,
    )
    connections_max_idle_ms = Property(
        "connections.max.idle.ms",
        LONG,
        "600000",
        "A connection without a request for this long is closed; -1 never.",
        unit="ms",
        minimum=1,
        also=(-1,),
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
        own=True,
    )
    listen_backlog = Property(
        "socket.listen.backlog.size",
        INT,
        "1024",
        "Connections that may wait to be accepted; for who finds no room, a second goes by or more.",
        minimum=1,
        dynamic=False,
        kafka_default="50",
    )
    request_max_bytes = Property(
        "socket.request.max.bytes",
        INT,
        "104857600",
        "Largest request; a larger one closes the connection.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    request_max_elements = Property(
        "request.max.elements",
        INT,
        "100000",
        "Maximum number of array elements (partitions, topics, groups, settings) in one request, over "
        "all its arrays. A larger request closes the connection.",
        minimum=1000,
        own=True,
    )
    connection_pending_response_bytes_max = Property(
        "connection.max.pending.response.bytes",
        INT,
        "1048576",
        "Maximum size of the pending responses of a connection: bytes that the client has not read yet, "
        "and rows that are still to be answered. Beyond it the connection is not read until the client "
        "reads responses.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        own=True,
    )
    queued_max_request_bytes = Property(
        "queued.max.request.bytes",
        LONG,
        "268435456",
        "Bytes of large requests (above 64 KiB) that have come, on all connections; beyond it no more "
        "of them is read until some are answered, but for one at a time, and for an eighth of the limit "
        "those of which the least is missing. Of this, one address gets at most half "
        "while others want some, and a request of which less than 64 KiB come in a second is given "
        "up. -1 or 0 is unlimited.",
        unit="bytes",
        minimum=1,
        also=(-1, 0),
        dynamic=False,
        kafka_default="-1",
    )
    decompressed_batch_max_bytes = Property(
        "decompressed.batch.max.bytes",
        LONG,
        "67108864",
        "Largest record batch after decompression. A larger one that a client sends is refused with "
        "MESSAGE_TOO_LARGE.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        own=True,
    )
    batch_max_records = Property(
        "batch.max.records",
        INT,
        "500000",
        "Maximum number of records in a batch. The broker rejects a larger batch with "
        "MESSAGE_TOO_LARGE, so that the Java client splits it.",
        minimum=1,
        dynamic=False,
        own=True,
    )
    batch_max_headers = Property(
        "batch.max.headers",
        INT,
        "500000",
        "Maximum number of headers of all records in a batch. The broker rejects a larger batch with "
        "MESSAGE_TOO_LARGE.",
        minimum=1,
        dynamic=False,
        own=True,
    )
    record_max_headers = Property(
        "record.max.headers",
        INT,
        "10000",
        "Maximum number of headers of a record. The broker rejects a batch with such a record with "
        "INVALID_RECORD.",
        minimum=1,
        dynamic=False,
        own=True,
    )
    fetch_max_bytes = Property(
        "fetch.max.bytes",
        INT,
        "57671680",
        "Most record bytes in one fetch answer.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
    )
    fetch_sessions_max = Property(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "Fetch sessions remembered at the same time. Together they remember 200 partitions for each of "
        "these; a client that finds no room is answered without a session.",
        minimum=0,
        dynamic=False,
    )
    request_max_partitions = Property(
        "max.request.partition.size.limit",
        INT,
        "2000",
        "Most partitions in one answer to DescribeTopicPartitions.",
        minimum=1,
        dynamic=False,
    )
    quota_window_num = _windows("quota.window.num", "clients")
    quota_window_size_seconds = _window_size("quota.window.size.seconds", "clients")
    controller_quota_window_num = _windows("controller.quota.window.num", "changes of partitions")
    controller_quota_window_size_seconds = _window_size(
        "controller.quota.window.size.seconds", "changes of partitions"
    )
    telemetry_max_bytes = Property(
        "telemetry.max.bytes",
        INT,
        "1048576",
        "Size of the metrics that a client may send at a time, as they are sent (KIP-714).",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    leader_replication_throttled_rate = _quota(
        "leader.replication.throttled.rate", "Bytes per second that others copy from here."
    )
    follower_replication_throttled_rate = _quota(
        "follower.replication.throttled.rate", "Bytes per second that this node copies."
    )
    replica_alter_log_dirs_io_max_bytes_per_second = _quota(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "Bytes per second with which replicas move between directories.",
        Effect.LATER,
    )
    login_bytes_max = Property(
        "sasl.server.max.receive.size",
        INT,
        "524288",
        "Largest request before a client has shown who it is.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    )
    failed_login_delay_ms = Property(
        "connection.failed.authentication.delay.ms",
        INT,
        "100",
        "Wait before a connection that failed to authenticate is closed.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )


def _later(name: str, kind: Kind[T], default: str | None, doc: str, dynamic: bool) -> Property[T]:
    return Property(name, kind, default, doc, dynamic=dynamic, effect=Effect.LATER)


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
        "How long a login is good, with 0 as long as the connection or the token: then the client logs "
        "in again on the same connection, or is closed when it asks for anything else.",
        unit="ms",
        minimum=0,
        dynamic=False,
    )
    sasl_server_callback_handler_class = Property(
        "sasl.server.callback.handler.class",
        CLASS,
        None,
        "What checks logins. Only Kafka's own class for tokens can be named, "
        "`...oauthbearer.OAuthBearerValidatorCallbackHandler`, and need not be.",
        dynamic=False,
    )
    sasl_oauthbearer_jwks_endpoint_url = _token(
        "jwks.endpoint.url",
        STRING,
        None,
        "Where the keys are by which tokens are checked (JWKS): https://... or file:///...",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms = _token(
        "jwks.endpoint.refresh.ms",
        LONG,
        "3600000",
        "How often those keys are fetched again. A token by a key that is not known has them fetched "
        "at once.",
        unit="ms",
        minimum=1000,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = _token(
        "jwks.endpoint.retry.backoff.ms",
        LONG,
        "100",
        "Wait before they are fetched again when that has failed. It doubles each time.",
        unit="ms",
        minimum=1,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = _token(
        "jwks.endpoint.retry.backoff.max.ms",
        LONG,
        "10000",
        "Up to this.",
        unit="ms",
        minimum=1,
    )
    sasl_oauthbearer_expected_issuer = _token(
        "expected.issuer", STRING, None, "Who issues the tokens that are taken (`iss`)."
    )
    sasl_oauthbearer_expected_audience = _token(
        "expected.audience",
        LIST,
        "",
        "Whom the tokens that are taken are meant for: one of these has to stand in `aud`.",
    )
    sasl_oauthbearer_clock_skew_seconds = _token(
        "clock.skew.seconds",
        INT,
        "30",
        "How far clocks may be apart when it is looked whether a token is good now.",
        unit="seconds",
        minimum=0,
    )
    sasl_oauthbearer_scope_claim_name = _token(
        "scope.claim.name", STRING, "scope", "Claim of a token that has its scopes."
    )
    sasl_oauthbearer_sub_claim_name = _token(
        "sub.claim.name", STRING, "sub", "Claim of a token that has the user's name."
    )
    sasl_oauthbearer_token_endpoint_url = _token(
        "token.endpoint.url",
        STRING,
        None,
        "Where nodes get the tokens by which they log in at each other: https://... or file:///...",
    )
    sasl_oauthbearer_client_credentials_client_id = _token(
        "client.credentials.client.id",
        STRING,
        None,
        "Who nodes are where tokens are issued.",
    )
    sasl_oauthbearer_client_credentials_client_secret = _token(
        "client.credentials.client.secret",
        PASSWORD,
        None,
        "The secret by which they are known there.",
    )
    sasl_oauthbearer_scope = _token("scope", STRING, None, "What their tokens are for.")
    sasl_oauthbearer_jwt_validator_class = _token(
        "jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "What checks tokens: Kafka's own classes only, and kbroker does as they do.",
    )


class DelegationTokenSettings(Settings):
    __slots__ = ()

    title = "Security"

    delegation_token_secret_key = Property(
        "delegation.token.secret.key",
        PASSWORD,
        None,
        "What delegation tokens are made with, the same on all nodes; without it there are none. "
        "With another one all tokens are void.",
        dynamic=False,
    )
    delegation_token_max_lifetime_ms = Property(
        "delegation.token.max.lifetime.ms",
        LONG,
        "604800000",
        "Greatest age of a delegation token, however often it is renewed.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    delegation_token_expiry_time_ms = Property(
        "delegation.token.expiry.time.ms",
        LONG,
        "86400000",
        "How long a delegation token is good until it has to be renewed.",
        unit="ms",
        minimum=1,
        dynamic=False,
    )
    delegation_token_expiry_check_interval_ms = Property(
        "delegation.token.expiry.check.interval.ms",
        LONG,
        "3600000",
        "How often delegation tokens that have ended are removed.",
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
        f"Who may do what: with {STANDARD_AUTHORIZER} what ACLs allow, and without it everybody may do "
        "everything.",
        choices=("", STANDARD_AUTHORIZER),
        dynamic=False,
    )
    super_users = Property(
        "super.users",
        STRING,
        "",
        "Users who may do everything, whatever ACLs say, as `User:name;User:name`.",
        pattern=r"(\s*[^:;]+:[^;]*(;|$))*",
        pattern_words="User:name;User:name",
        dynamic=False,
    )
    allow_everyone_if_no_acl_found = Property(
        "allow.everyone.if.no.acl.found",
        BOOLEAN,
        "false",
        "Whether everybody may use a resource of which no ACL says anything.",
        dynamic=False,
    )
    principal_builder_class = Property(
        "principal.builder.class",
        CLASS,
        _PRINCIPAL_BUILDER,
        "How clients are named: Kafka's own class only, and kbroker does as it does.",
        choices=(_PRINCIPAL_BUILDER,),
        effect=Effect.NONE,
    )
    sasl_enabled_mechanisms = Property(
        "sasl.enabled.mechanisms",
        LIST,
        "GSSAPI",
        "SASL mechanisms by which clients may log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    )
    sasl_plain_over_plaintext_enable = Property(
        "sasl.plain.over.plaintext.enable",
        BOOLEAN,
        "false",
        "Allow PLAIN authentication on SASL_PLAINTEXT listeners that other machines can reach. "
        "Passwords cross the network unencrypted, so use it only on trusted networks, such as that "
        "of a compose file.",
        dynamic=False,
        own=True,
    )


class AuthenticationSettings(Settings):
    __slots__ = ()

    title = "Security"

    sasl_jaas_config = Property(
        "sasl.jaas.config",
        PASSWORD,
        None,
        "Users of a listener with a login, and their passwords: a login module with `user_NAME` "
        "options. Of one mechanism with `listener.name.NAME.MECHANISM.` before it. The setting of all "
        "listeners may have several login modules, one of each class.",
    )
    sasl_mechanism_inter_broker_protocol = Property(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        "GSSAPI",
        "SASL mechanism by which nodes log in at each other, as who stands in that listener's "
        "sasl.jaas.config of this mechanism.",
    )
    ssl_client_auth = Property(
        "ssl.client.auth",
        STRING,
        "none",
        "Whether TLS clients must show a certificate.",
        choices=("required", "requested", "none"),
    )
    ssl_cipher_suites = Property(
        "ssl.cipher.suites",
        LIST,
        "",
        "TLS cipher suites that may be used, by the names that Java has for them; empty for those that "
        "OpenSSL takes for good ones.",
    )
    ssl_enabled_protocols = Property(
        "ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", "TLS versions that may be used."
    )
    ssl_protocol = Property(
        "ssl.protocol",
        STRING,
        "TLSv1.3",
        "Java's name for how TLS is made. Which versions are spoken is said by ssl.enabled.protocols, in "
        "Kafka as well.",
        choices=("TLS", "TLSv1.2", "TLSv1.3"),
        effect=Effect.NONE,
    )
    ssl_endpoint_identification_algorithm = Property(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "Whether nodes check the name in each other's certificates: https, or nothing.",
    )
    ssl_engine_factory_class = Property(
        "ssl.engine.factory.class",
        CLASS,
        None,
        "What speaks TLS. Only Kafka's own class can be named, and need not be.",
        choices=(_ENGINE_FACTORY,),
        effect=Effect.NONE,
    )
    ssl_principal_mapping_rules = Property(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        "How the subject of a client's certificate becomes its name: `RULE:pattern/replacement/`, with L "
        "or U at its end for lower or upper case, or DEFAULT, the subject as it is. The first rule whose "
        "pattern, of RE2, is the whole subject counts.",
        dynamic=False,
    )
    ssl_key_password = Property("ssl.key.password", PASSWORD, None, "Password of the private key.")
    ssl_keystore_certificate_chain = Property(
        "ssl.keystore.certificate.chain",
        PASSWORD,
        None,
        "The node's certificate and its issuers, as PEM text.",
    )
    ssl_keystore_key = Property(
        "ssl.keystore.key", PASSWORD, None, "The node's private key, as PEM text."
    )
    ssl_keystore_location = Property(
        "ssl.keystore.location", STRING, None, "File of the node's certificate."
    )
    ssl_keystore_password = Property(
        "ssl.keystore.password", PASSWORD, None, "Password of that file."
    )
    ssl_keystore_type = Property(
        "ssl.keystore.type",
        STRING,
        "JKS",
        "Format of that file. It is read as what it is, PEM or PKCS#12.",
        effect=Effect.NONE,
    )
    ssl_truststore_certificates = Property(
        "ssl.truststore.certificates",
        PASSWORD,
        None,
        "Certificates of trusted issuers, as PEM text.",
    )
    ssl_truststore_location = Property(
        "ssl.truststore.location", STRING, None, "File of trusted issuers' certificates."
    )
    ssl_truststore_password = Property(
        "ssl.truststore.password", PASSWORD, None, "Password of that file."
    )
    ssl_truststore_type = Property(
        "ssl.truststore.type",
        STRING,
        "JKS",
        "Format of that file. It is read as what it is, PEM or PKCS#12.",
        effect=Effect.NONE,
    )


def _ignored(
    name: str,
    kind: Kind[T],
    default: str | None,
    doc: str,
    dynamic: bool,
    minimum: int | None = None,
) -> Property[T]:
    return Property(name, kind, default, doc, minimum=minimum, dynamic=dynamic, effect=Effect.NONE)


class IgnoredSettings(Settings):
    __slots__ = ()

    title = "Accepted for the sake of Kafka's files"

    process_roles = Property(
        "process.roles",
        LIST,
        "broker,controller",
        "Roles of this process. Every node of kbroker has both.",
        choices=("broker", "controller"),
        dynamic=False,
        effect=Effect.NONE,
        kafka_default="none: must be set",
    )
    controller_quorum_voters = _ignored(
        "controller.quorum.voters",
        LIST,
        "",
        "Members of Kafka's metadata quorum, which kbroker does not have.",
        False,
    )
    controller_quorum_bootstrap_servers = _ignored(
        "controller.quorum.bootstrap.servers",
        LIST,
        "",
        "Where Kafka's metadata quorum is found.",
        False,
    )
    controller_listener_names = Property(
        "controller.listener.names",
        LIST,
        "",
        "Names of the listeners that are for Kafka's controllers: kbroker leaves them out.",
        dynamic=False,
        kafka_default="none: must be set",
    )
    num_network_threads = _ignored(
        "num.network.threads", INT, "3", "Threads for the network.", True, 1
    )
    num_io_threads = _ignored("num.io.threads", INT, "8", "Threads for requests.", True, 1)
    background_threads = _ignored(
        "background.threads", INT, "10", "Threads for background work.", True, 1
    )
    num_recovery_threads_per_data_dir = _ignored(
        "num.recovery.threads.per.data.dir",
        INT,
        "2",
        "Threads that recover logs at start.",
        True,
        1,
    )
    num_replica_fetchers = _ignored(
        "num.replica.fetchers", INT, "1", "Threads that copy from a leader.", True, 1
    )
    socket_send_buffer_bytes = _ignored(
        "socket.send.buffer.bytes",
        INT,
        "102400",
        "Send buffer of a connection; the operating system sizes it.",
        False,
    )
    socket_receive_buffer_bytes = _ignored(
        "socket.receive.buffer.bytes",
        INT,
        "102400",
        "Receive buffer of a connection; the operating system sizes it.",
        False,
    )
    queued_max_requests = _ignored(
        "queued.max.requests",
        INT,
        "500",
        "Requests that wait for a thread. `queued.max.request.bytes` bounds them.",
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
        "Where the console, metrics and probes are served by HTTP. Beyond this machine everybody who reaches "
        "it can read them.",
        dynamic=False,
        own=True,
    )
    http_port = Property(
        "http.port",
        INT,
        "-1",
        "The port for HTTP; 0 is a free one, -1 serves none. The next nodes of a process have those "
        "behind. Needs `kbroker[console]`.",
        minimum=0,
        maximum=65535,
        also=(-1,),
        dynamic=False,
        own=True,
    )
    http_allowed_hosts = Property(
        "http.allowed.hosts",
        LIST,
        "",
        "Names by which HTTP is asked, beside addresses, localhost, names without dots and the name of "
        "this machine; a web page elsewhere can make a browser come by any other name (DNS rebinding).",
        dynamic=False,
        own=True,
    )
    http_max_connections = Property(
        "http.max.connections",
        INT,
        "100",
        "Open connections for HTTP; for one more, the one on which nothing happened for the longest "
        "gives way.",
        minimum=1,
        dynamic=False,
        own=True,
    )
    http_max_request_bytes = Property(
        "http.max.request.bytes",
        INT,
        "1048576",
        "The largest body of an HTTP request.",
        unit="bytes",
        minimum=0,
        dynamic=False,
        own=True,
    )
    http_console_write = Property(
        "http.console.write",
        BOOLEAN,
        "false",
        "Lets the console write beyond this machine as well: records, offsets of groups, and the ends of "
        "groups and of transactions that hang.",
        dynamic=False,
        own=True,
    )
    http_request_timeout_ms = Property(
        "http.request.timeout.ms",
        INT,
        "30000",
        "How long an HTTP request may take, and how long a client may take nothing of its answer.",
        unit="ms",
        minimum=1,
        dynamic=False,
        own=True,
    )


class OtlpSettings(Settings):
    __slots__ = ()

    title = "OpenTelemetry"

    otlp_endpoint = Property(
        "otlp.endpoint",
        STRING,
        "",
        "Where metrics are sent by OTLP over HTTP, such as `http://collector:4318/v1/metrics`; nowhere if "
        "it is empty. Needs `kbroker[otlp]`.",
        dynamic=False,
        own=True,
    )
    otlp_interval_ms = Property(
        "otlp.interval.ms",
        LONG,
        "60000",
        "How often metrics are sent to `otlp.endpoint`.",
        minimum=1000,
        dynamic=False,
        own=True,
    )


class RegistrySettings(Settings):
    __slots__ = ()

    title = "Schema registry"

    registry_host = Property(
        "registry.host",
        STRING,
        "127.0.0.1",
        "Where the schema registry is served by HTTP. Beyond this machine everybody who reaches it can "
        "register and delete schemas; where users log in it is served on this machine only.",
        dynamic=False,
        own=True,
    )
    registry_port = Property(
        "registry.port",
        INT,
        "-1",
        "The port of the schema registry; 0 is a free one, -1 serves none. The next nodes of a process "
        "have those behind. Needs `kbroker[registry]`; what `http.*` bounds is bounded here too.",
        minimum=0,
        maximum=65535,
        also=(-1,),
        dynamic=False,
        own=True,
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
    """Every setting of a node, in the order of the documentation."""

    __slots__ = ()
