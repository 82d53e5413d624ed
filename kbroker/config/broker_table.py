"""The table of broker settings, by subject.

It has the settings of Apache Kafka 4.3 that kbroker applies or will apply, those that appear in
most configuration files, and kbroker's own. ``known_elsewhere`` covers the rest of Kafka's names.
"""

from __future__ import annotations

from typing import Any

from .group_table import GROUP_BROKER_TABLE
from .property import Effect, Property, Type

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


_NODE = (
    Property(
        "node.id",
        Type.INT,
        "1",
        "Number of this node, unique in the cluster.",
        minimum=0,
        dynamic=False,
        kafka_default="none: must be set",
    ),
    Property(
        "broker.id",
        Type.INT,
        "1",
        "Older name of `node.id`; setting one sets both.",
        minimum=-1,
        dynamic=False,
        kafka_default="-1",
    ),
    Property(
        "broker.rack",
        Type.STRING,
        None,
        "Place of this node (rack, zone); clients see it in the metadata.",
        dynamic=False,
    ),
    Property(
        "listeners",
        Type.LIST,
        _LISTENER_EXAMPLE,
        "Addresses to listen on, as `NAME://host:port`. An empty host, 0.0.0.0 and [::] are every "
        "interface, and localhost is the loopback interface, each with IPv4 and IPv6.",
        dynamic=False,
        kafka_dynamic=True,
        kafka_default="PLAINTEXT://:9092",
    ),
    Property(
        "advertised.listeners",
        Type.LIST,
        None,
        "Addresses that clients are told to connect to, as `NAME://host:port`. An empty host is this "
        "machine's canonical host name. Each client of a listener without one is told the address "
        "that it dialled.",
        dynamic=False,
    ),
    Property(
        "listener.security.protocol.map",
        Type.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of every listener name, as `NAME:PROTOCOL,...`.",
        dynamic=False,
        kafka_dynamic=True,
    ),
    Property(
        "inter.broker.listener.name",
        Type.STRING,
        None,
        "Name of the listener that nodes use among themselves; unset, the one named as "
        "security.inter.broker.protocol, or the first one.",
        dynamic=False,
    ),
    Property(
        "security.inter.broker.protocol",
        Type.STRING,
        "PLAINTEXT",
        "Security protocol between nodes: that of the listener of this name.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        dynamic=False,
    ),
)

_CLUSTER = (
    Property(
        "broker.session.timeout.ms",
        Type.INT,
        "600",
        "How long a node that says nothing counts as alive in a cluster of several nodes; then "
        "others take over what it leads.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kafka_default="9000",
    ),
    Property(
        "broker.heartbeat.interval.ms",
        Type.INT,
        "200",
        "How often a node of several says that it is alive; a third of "
        "`broker.session.timeout.ms` or less.",
        unit="ms",
        minimum=1,
        dynamic=False,
        kafka_default="2000",
    ),
    Property(
        "unsure.leader.acks.enable",
        Type.BOOLEAN,
        "false",
        "Whether a leader whose session may be over still takes acks=0 and acks=1. What it "
        "acknowledges so is lost when another node leads by then. With acks=all it goes on anyway.",
        dynamic=False,
        own=True,
    ),
    Property(
        "controlled.shutdown.enable",
        Type.BOOLEAN,
        "true",
        "Hand leaderships over to other nodes before a stop.",
        dynamic=False,
    ),
    Property(
        "auto.leader.rebalance.enable",
        Type.BOOLEAN,
        "true",
        "Give leadership back to preferred replicas, the first ones of each partition.",
        dynamic=False,
    ),
    Property(
        "leader.imbalance.check.interval.seconds",
        Type.LONG,
        "300",
        "How often the controller looks for partitions whose preferred replica does not lead.",
        unit="seconds",
        minimum=1,
        dynamic=False,
    ),
)

_STORAGE = (
    Property(
        "log.dirs",
        Type.LIST,
        None,
        "Folders that hold this node's logs; `log.dir` when unset. A new partition goes where the "
        "fewest are, a client can move it to another. The first folder holds the metadata too.",
        dynamic=False,
    ),
    Property(
        "log.dir",
        Type.LIST,
        "./kbroker-data",
        "Folder that holds this node's logs.",
        longest=1,
        dynamic=False,
        kafka_default="/tmp/kafka-logs",
    ),
    Property(
        "cordoned.log.dirs",
        Type.LIST,
        "",
        "Folders of `log.dirs` that take no new partitions; `*` stands for all of them (KIP-1066).",
    ),
    Property(
        "log.dirs.lost",
        Type.LIST,
        None,
        "Ids of data folders that are gone for good (as in their `meta.properties`). Without it a "
        "node does not start when one of its folders is missing, because the partitions in it would "
        "begin empty.",
        dynamic=False,
        own=True,
    ),
    Property(
        "flush.policy",
        Type.STRING,
        "fsync",
        "When appended records reach the disk: `fsync` before their acknowledgement, `interval` "
        "every `flush.interval.ms`, `os` when the operating system writes them. With the last two "
        "a power cut can take acknowledged records back. Kafka acts like `os`.",
        choices=("fsync", "interval", "os"),
        dynamic=False,
        own=True,
    ),
    Property(
        "flush.interval.ms",
        Type.LONG,
        "1000",
        "Time between two syncs with `flush.policy=interval`.",
        unit="ms",
        minimum=1,
        dynamic=False,
        own=True,
    ),
    Property(
        "memory.limit.bytes",
        Type.LONG,
        str(2**30),
        "What `--memory` holds at most. Above it producers get KAFKA_STORAGE_ERROR; nothing that "
        "retention would keep is dropped.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        own=True,
    ),
)

_TOPICS = (
    Property(
        "num.partitions",
        Type.INT,
        "1",
        "Partitions of a topic that is created without a number.",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "default.replication.factor",
        Type.INT,
        "1",
        "Replicas of a topic that is created without a number.",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "replication.factor.clamp",
        Type.BOOLEAN,
        "false",
        "Lower a replication factor above the number of nodes to that number, with one warning, "
        "instead of refusing the topic. For applications that insist on 3.",
        dynamic=False,
        own=True,
    ),
    Property(
        "auto.create.topics.enable",
        Type.BOOLEAN,
        "true",
        "Create a topic when a client that allows it asks for one that does not exist.",
        dynamic=False,
    ),
    Property(
        "delete.topic.enable",
        Type.BOOLEAN,
        "true",
        "Whether topics may be deleted.",
        dynamic=False,
    ),
    Property(
        "min.insync.replicas",
        Type.INT,
        "1",
        "Replicas that must have a record before `acks=all` is answered.",
        minimum=1,
    ),
    Property(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        "false",
        "Let a replica that is not in sync become leader when no other lives. Here only an explicit "
        "call elects such a leader (kafka-leader-election --election-type unclean).",
        effect=Effect.NONE,
    ),
    Property(
        "compression.type",
        Type.STRING,
        "producer",
        "Codec in which topics are stored; `producer` keeps what the producer chose.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Property(
        "compression.gzip.level",
        Type.INT,
        "-1",
        "Level for gzip; -1 is the library's choice.",
        minimum=1,
        maximum=9,
        also=(-1,),
    ),
    Property(
        "compression.lz4.level",
        Type.INT,
        "9",
        "Level for lz4.",
        minimum=1,
        maximum=17,
    ),
    Property(
        "compression.zstd.level",
        Type.INT,
        "3",
        "Level for zstd.",
        minimum=-131072,
        maximum=22,
    ),
)

_LOGS = (
    Property(
        "message.max.bytes",
        Type.INT,
        "1048588",
        "Largest record batch that a topic takes, as sent (after compression).",
        unit="bytes",
        minimum=0,
    ),
    Property(
        "max.decompressed.message.bytes",
        Type.INT,
        "2147483639",
        "Largest record of a compressed batch after decompression, for topics without their own value.",
        unit="bytes",
        minimum=1,
    ),
    Property(
        "log.cleanup.policy",
        Type.LIST,
        "delete",
        "What happens to old segments, unless the topic says otherwise.",
        choices=("compact", "delete"),
    ),
    Property(
        "log.retention.ms",
        Type.LONG,
        None,
        "Age beyond which a segment is dropped; -1 is unlimited. Goes before "
        "`log.retention.minutes`.",
        unit="ms",
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Property(
        "log.retention.minutes",
        Type.INT,
        None,
        "`log.retention.ms` in minutes. Goes before `log.retention.hours`.",
        unit="minutes",
        minimum=-1,
        dynamic=False,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Property(
        "log.retention.hours",
        Type.INT,
        "168",
        "`log.retention.ms` in hours.",
        unit="hours",
        minimum=-1,
        dynamic=False,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Property(
        "log.retention.bytes",
        Type.LONG,
        "-1",
        "Size of a partition beyond which its oldest segments are dropped; -1 is unlimited.",
        unit="bytes",
    ),
    Property(
        "log.retention.check.interval.ms",
        Type.LONG,
        "300000",
        "Time between two looks for segments to drop.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "log.segment.bytes",
        Type.INT,
        "1073741824",
        "Size at which a new segment file begins.",
        unit="bytes",
        minimum=1048576,
    ),
    Property(
        "log.roll.ms",
        Type.LONG,
        None,
        "Age at which a new segment begins. Goes before `log.roll.hours`.",
        unit="ms",
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    Property(
        "log.roll.hours",
        Type.INT,
        "168",
        "`log.roll.ms` in hours.",
        unit="hours",
        minimum=1,
        dynamic=False,
        synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    Property(
        "log.roll.jitter.ms",
        Type.LONG,
        None,
        "Random time taken off the age at which a segment rolls. Goes before "
        "`log.roll.jitter.hours`.",
        unit="ms",
        minimum=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    Property(
        "log.roll.jitter.hours",
        Type.INT,
        "0",
        "`log.roll.jitter.ms` in hours.",
        unit="hours",
        minimum=0,
        dynamic=False,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    Property(
        "log.index.interval.bytes",
        Type.INT,
        "4096",
        "Bytes of log between two entries of the offset index.",
        unit="bytes",
        minimum=0,
    ),
    Property(
        "log.index.size.max.bytes",
        Type.INT,
        "10485760",
        "Largest size of a segment's index; a full index begins a new segment.",
        unit="bytes",
        minimum=4,
    ),
    Property(
        "log.message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Whose time a record carries: the producer's, or the broker's when it is appended.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    Property(
        "log.message.timestamp.after.max.ms",
        Type.LONG,
        "3600000",
        "How far a record's timestamp may lie ahead of the broker's clock.",
        unit="ms",
        minimum=0,
    ),
    Property(
        "log.message.timestamp.before.max.ms",
        Type.LONG,
        _FOREVER,
        "How far a record's timestamp may lie behind the broker's clock.",
        unit="ms",
        minimum=0,
    ),
    Property(
        "log.flush.interval.messages",
        Type.LONG,
        _FOREVER,
        "Once this many records of a log are not on disk, the next acknowledgement waits for a "
        "sync. With `flush.policy=fsync` every one does.",
        minimum=1,
    ),
    Property(
        "log.flush.interval.ms",
        Type.LONG,
        None,
        "A log is synced when its oldest record that is not on disk is this old. With "
        "`flush.policy=fsync` none that is acknowledged waits.",
        unit="ms",
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    Property(
        "log.flush.scheduler.interval.ms",
        Type.LONG,
        _FOREVER,
        "Stands for `log.flush.interval.ms` where that is unset.",
        unit="ms",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "log.flush.offset.checkpoint.interval.ms",
        Type.INT,
        "60000",
        "Time between two recovery checkpoints. kbroker writes one at least every 5 seconds.",
        unit="ms",
        minimum=0,
        dynamic=False,
        effect=Effect.NONE,
    ),
    Property(
        "log.flush.start.offset.checkpoint.interval.ms",
        Type.INT,
        "60000",
        "Time between two checkpoints of the log start. kbroker writes it when the start moves.",
        unit="ms",
        minimum=0,
        dynamic=False,
        effect=Effect.NONE,
    ),
    Property(
        "log.segment.delete.delay.ms",
        Type.LONG,
        "60000",
        "Wait before a dropped segment's files are removed. kbroker removes them at once.",
        unit="ms",
        minimum=0,
        effect=Effect.NONE,
    ),
    Property(
        "log.preallocate",
        Type.BOOLEAN,
        "false",
        "Reserve a new segment's disk space at once. kbroker's segments grow as they are written.",
        effect=Effect.NONE,
    ),
    Property(
        "log.local.retention.bytes",
        Type.LONG,
        "-2",
        "Size kept on local disk with tiered storage, which kbroker does not have.",
        unit="bytes",
        minimum=-2,
        effect=Effect.NONE,
    ),
    Property(
        "log.local.retention.ms",
        Type.LONG,
        "-2",
        "Time kept on local disk with tiered storage, which kbroker does not have.",
        unit="ms",
        minimum=-2,
        effect=Effect.NONE,
    ),
    Property(
        "log.cleaner.delete.retention.ms",
        Type.LONG,
        "86400000",
        "How long a compacted topic keeps the marker of a deleted key.",
        unit="ms",
        minimum=0,
    ),
    Property(
        "log.cleaner.max.compaction.lag.ms",
        Type.LONG,
        _FOREVER,
        "Longest time that a record may wait for compaction.",
        unit="ms",
        minimum=1,
    ),
    Property(
        "log.cleaner.min.compaction.lag.ms",
        Type.LONG,
        "0",
        "Shortest time that a record stays uncompacted.",
        unit="ms",
        minimum=0,
    ),
    Property(
        "log.cleaner.min.cleanable.ratio",
        Type.DOUBLE,
        "0.5",
        "Share of a log that must be uncompacted before it is compacted again.",
        minimum=0,
        maximum=1,
    ),
    Property(
        "log.cleaner.enable",
        Type.BOOLEAN,
        "true",
        "Whether compacted topics are compacted at all.",
        dynamic=False,
    ),
    Property(
        "log.scrub.bytes.per.second",
        Type.LONG,
        "4194304",
        "How fast the records on disk are read again and compared with their checksums, in the "
        "background; 0 never does it. A partition with damage goes offline.",
        unit="bytes",
        minimum=0,
        own=True,
    ),
    Property(
        "log.scrub.interval.ms",
        Type.LONG,
        "604800000",
        "Time from the begin of one such reading of everything to the begin of the next.",
        unit="ms",
        minimum=1,
        own=True,
    ),
    Property(
        "log.cleaner.backoff.ms",
        Type.LONG,
        "15000",
        "Time between two looks for compacted topics that are dirty enough.",
        unit="ms",
        minimum=0,
    ),
    Property(
        "log.cleaner.dedupe.buffer.size",
        Type.LONG,
        "134217728",
        "Memory for the keys of one compaction, at 160 bytes a key (Kafka: 24): a part of a log "
        "with more keys takes several runs. It is taken by the process that compacts.",
        unit="bytes",
    ),
)

_GROUPS = (
    Property(
        "group.initial.rebalance.delay.ms",
        Type.INT,
        "0",
        "Wait of a new group for more members before its first assignment.",
        unit="ms",
        minimum=0,
        dynamic=False,
        kafka_default="3000",
    ),
    Property(
        "group.min.session.timeout.ms",
        Type.INT,
        "6000",
        "Shortest session timeout that a member may ask for.",
        unit="ms",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "group.max.session.timeout.ms",
        Type.INT,
        "1800000",
        "Longest session timeout that a member may ask for.",
        unit="ms",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "group.max.size",
        Type.INT,
        _UNLIMITED,
        "Most members of one group.",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "group.member.metadata.max.bytes",
        Type.INT,
        "1048576",
        "Maximum size of the metadata that one member of a classic group may join with, over all its "
        "protocols. The broker rejects a larger one with INVALID_REQUEST.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    ),
    Property(
        "group.metadata.max.bytes",
        Type.INT,
        "16777216",
        "Maximum size of the metadata of all members of one classic group. A member that would exceed "
        "it is answered with GROUP_MAX_SIZE_REACHED.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    ),
    Property(
        "group.coordinator.members.max.bytes",
        Type.LONG,
        "134217728",
        "Maximum size of what the members of all groups of a broker hold in memory: metadata, "
        "subscriptions, assignments and topologies. A member that would exceed it is answered with "
        "COORDINATOR_LOAD_IN_PROGRESS and tries again. Clients of one IP address hold at most as much "
        "as is left to the others.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    ),
    Property(
        "group.coordinator.offsets.max.bytes",
        Type.LONG,
        "268435456",
        "Maximum size of the committed offsets of all groups of a broker in memory, each with its "
        "metadata string and about 400 bytes more. A commit that would exceed it is answered with "
        "INVALID_COMMIT_OFFSET_SIZE. Groups can still commit to partitions that have an offset.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    ),
    Property(
        "offset.metadata.max.bytes",
        Type.INT,
        "4096",
        "Longest note that may go with a committed offset.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "offsets.retention.minutes",
        Type.INT,
        "10080",
        "How long the offsets of an empty group are kept.",
        unit="minutes",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "offsets.retention.check.interval.ms",
        Type.LONG,
        "600000",
        "Time between two looks for expired offsets.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "offsets.commit.timeout.ms",
        Type.INT,
        "5000",
        "How long what a coordinator stores, commits among it, waits for other replicas; then the "
        "client is told to ask again.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "offsets.topic.num.partitions",
        Type.INT,
        "50",
        "Partitions of `__consumer_offsets`; fixed once it exists.",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "offsets.topic.replication.factor",
        Type.SHORT,
        "1",
        "Replicas of `__consumer_offsets`: as many as there are nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    ),
    Property(
        "offsets.topic.segment.bytes",
        Type.INT,
        "104857600",
        "Segment size of `__consumer_offsets`.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    ),
)

_TRANSACTIONS = (
    Property(
        "producer.id.expiration.ms",
        Type.INT,
        "86400000",
        "How long a partition remembers the sequence numbers of a producer that stays silent. It "
        "remembers 50,000 producers at most; beyond that the ones silent for longest go first.",
        unit="ms",
        minimum=1,
    ),
    Property(
        "transaction.coordinator.ids.max.bytes",
        Type.LONG,
        "134217728",
        "Maximum size of the transactional IDs of a broker in memory, about 1 kB each. A producer with "
        "a new ID that would exceed it is answered with COORDINATOR_LOAD_IN_PROGRESS and tries again. "
        "Clients of one IP address hold at most as much as is left to the others.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
        own=True,
    ),
    Property(
        "transactional.id.expiration.ms",
        Type.INT,
        "604800000",
        "How long an unused transactional id is remembered.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "transaction.max.timeout.ms",
        Type.INT,
        "900000",
        "Longest transaction that a producer may ask for.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "transaction.partition.verification.enable",
        Type.BOOLEAN,
        "true",
        "Whether the first transactional batch in a partition is appended only after the "
        "transaction coordinator has confirmed that the partition is part of the transaction.",
    ),
    Property(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Type.INT,
        "3600000",
        "Time between two looks for transactional ids that nobody used for long.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "transaction.state.log.num.partitions",
        Type.INT,
        "50",
        "Partitions of `__transaction_state`; fixed once it exists.",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "transaction.state.log.replication.factor",
        Type.SHORT,
        "1",
        "Replicas of `__transaction_state`: as many as there are nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    ),
    Property(
        "transaction.state.log.min.isr",
        Type.INT,
        "1",
        "`min.insync.replicas` of `__transaction_state`: one less than its replicas, at least 1.",
        minimum=1,
        dynamic=False,
        kafka_default="2",
        per_nodes=_min_in_sync,
    ),
    Property(
        "transaction.state.log.segment.bytes",
        Type.INT,
        "104857600",
        "Segment size of `__transaction_state`.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "share.coordinator.state.topic.num.partitions",
        Type.INT,
        "50",
        "Partitions of `__share_group_state`; fixed once it exists.",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "share.coordinator.state.topic.replication.factor",
        Type.SHORT,
        "1",
        "Replicas of `__share_group_state`: as many as there are nodes, at most 3.",
        minimum=1,
        dynamic=False,
        kafka_default="3",
        per_nodes=_replicas,
    ),
    Property(
        "share.coordinator.state.topic.min.isr",
        Type.SHORT,
        "1",
        "`min.insync.replicas` of `__share_group_state`: one less than its replicas, at least 1.",
        minimum=1,
        dynamic=False,
        kafka_default="2",
        per_nodes=_min_in_sync,
    ),
    Property(
        "share.coordinator.state.topic.segment.bytes",
        Type.INT,
        "104857600",
        "Segment size of `__share_group_state`.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "share.coordinator.snapshot.update.records.per.snapshot",
        Type.INT,
        "500",
        "Changes of a share partition that are stored as such before all of it is stored again.",
        minimum=0,
        maximum=500,
        dynamic=False,
    ),
)


def _quota(name: str, doc: str, effect: Effect = Effect.APPLIED) -> Property:
    return Property(
        name,
        Type.LONG,
        _FOREVER,
        f"{doc} Only for the replicas that a topic's `*.throttled.replicas` names.",
        unit="bytes per second",
        minimum=0,
        effect=effect,
    )


_REPLICATION = (
    Property(
        "replica.fetch.wait.max.ms",
        Type.INT,
        "500",
        "How long a leader holds back its answer to a follower that has everything.",
        unit="ms",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "replica.fetch.min.bytes",
        Type.INT,
        "1",
        "A leader answers a follower as soon as it has this much for it.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "replica.fetch.max.bytes",
        Type.INT,
        "1048576",
        "Most bytes of one partition in an answer to a follower; a larger batch comes alone.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "replica.fetch.response.max.bytes",
        Type.INT,
        "10485760",
        "Most bytes in one answer to a follower; a larger batch comes alone.",
        unit="bytes",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "replica.fetch.backoff.ms",
        Type.INT,
        "1000",
        "Longest pause of a follower before it asks again a leader that refused it or cannot be "
        "reached; the first pauses are shorter.",
        unit="ms",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "replica.socket.timeout.ms",
        Type.INT,
        "30000",
        "How long a node waits for another one's answer before it connects anew.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "replica.lag.time.max.ms",
        Type.LONG,
        "30000",
        "A follower that has been behind its leader for longer is not in sync any more.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "replica.selector.class",
        Type.STRING,
        None,
        "Which replica consumers read from: unset, the leader; with Kafka's rack-aware one, a "
        "follower that is in their rack (`client.rack`), if there is one (KIP-392).",
        choices=(RACK_AWARE_SELECTOR,),
        dynamic=False,
    ),
)

_LIMITS = (
    Property(
        "max.connections",
        Type.INT,
        "10000",
        "Most open connections of this node.",
        minimum=0,
        kafka_default=_UNLIMITED,
    ),
    Property(
        "max.connections.per.ip",
        Type.INT,
        "1000",
        "Most open connections from one address.",
        minimum=0,
        kafka_default=_UNLIMITED,
    ),
    Property(
        "max.connections.per.ip.overrides",
        Type.STRING,
        "",
        "Other limits for single addresses, as `address:number,...`.",
        pattern=rf"({_LIMITED_HOST}(\s*,\s*{_LIMITED_HOST})*)?",
        pattern_words="address:number,...",
    ),
    Property(
        "max.connection.creation.rate",
        Type.INT,
        "500",
        "Most new connections per second.",
        unit="per second",
        minimum=0,
        kafka_default=_UNLIMITED,
    ),
    Property(
        "connections.max.idle.ms",
        Type.LONG,
        "600000",
        "A connection without a request for this long is closed; -1 never.",
        unit="ms",
        minimum=1,
        also=(-1,),
        dynamic=False,
    ),
    Property(
        "first.request.timeout.ms",
        Type.LONG,
        "10000",
        "A new connection must send its first whole request within this time.",
        unit="ms",
        minimum=1,
        dynamic=False,
        own=True,
    ),
    Property(
        "socket.listen.backlog.size",
        Type.INT,
        "1024",
        "Connections that may wait to be accepted; for who finds no room, a second goes by or more.",
        minimum=1,
        dynamic=False,
        kafka_default="50",
    ),
    Property(
        "socket.request.max.bytes",
        Type.INT,
        "104857600",
        "Largest request; a larger one closes the connection.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "request.max.rows",
        Type.INT,
        "100000",
        "Array elements (partitions, topics, groups, settings) that one request may name, over all "
        "its arrays; a longer one closes the connection.",
        minimum=1000,
        own=True,
    ),
    Property(
        "connection.max.unsent.bytes",
        Type.INT,
        "1048576",
        "Bytes of answers that a client has not taken yet, and of rows that are still to be answered; "
        "beyond it no more of its requests are looked at until it does.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        own=True,
    ),
    Property(
        "queued.max.request.bytes",
        Type.LONG,
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
    ),
    Property(
        "decompressed.batch.max.bytes",
        Type.LONG,
        "67108864",
        "Largest record batch after decompression. A larger one that a client sends is refused with "
        "MESSAGE_TOO_LARGE.",
        unit="bytes",
        minimum=1,
        dynamic=False,
        own=True,
    ),
    Property(
        "batch.max.records",
        Type.INT,
        "500000",
        "Maximum number of records in a batch. The broker rejects a larger batch with "
        "MESSAGE_TOO_LARGE, so that the Java client splits it.",
        minimum=1,
        dynamic=False,
        own=True,
    ),
    Property(
        "batch.max.headers",
        Type.INT,
        "500000",
        "Maximum number of headers of all records in a batch. The broker rejects a larger batch with "
        "MESSAGE_TOO_LARGE.",
        minimum=1,
        dynamic=False,
        own=True,
    ),
    Property(
        "record.max.headers",
        Type.INT,
        "10000",
        "Maximum number of headers of a record. The broker rejects a batch with such a record with "
        "INVALID_RECORD.",
        minimum=1,
        dynamic=False,
        own=True,
    ),
    Property(
        "fetch.max.bytes",
        Type.INT,
        "57671680",
        "Most record bytes in one fetch answer.",
        unit="bytes",
        minimum=1024,
        dynamic=False,
    ),
    Property(
        "max.incremental.fetch.session.cache.slots",
        Type.INT,
        "1000",
        "Fetch sessions remembered at the same time. Together they remember 200 partitions for each of "
        "these; a client that finds no room is answered without a session.",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "max.request.partition.size.limit",
        Type.INT,
        "2000",
        "Most partitions in one answer to DescribeTopicPartitions.",
        minimum=1,
        dynamic=False,
    ),
    *(
        Property(
            f"{of}quota.window.{what}",
            Type.INT,
            default,
            f"{doc} over which the rates of {whose} are measured that have a quota.",
            unit=unit,
            minimum=minimum,
            dynamic=False,
        )
        for of, whose in (("", "clients"), ("controller.", "changes of partitions"))
        for what, default, doc, unit, minimum in (
            ("num", "11", "Number of windows", "", 1),
            ("size.seconds", "1", "Length of a window", "s", 1),
        )
    ),
    Property(
        "telemetry.max.bytes",
        Type.INT,
        "1048576",
        "Size of the metrics that a client may send at a time, as they are sent (KIP-714).",
        unit="bytes",
        minimum=1,
        dynamic=False,
    ),
    _quota("leader.replication.throttled.rate", "Bytes per second that others copy from here."),
    _quota("follower.replication.throttled.rate", "Bytes per second that this node copies."),
    _quota(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "Bytes per second with which replicas move between folders.",
        Effect.LATER,
    ),
    Property(
        "sasl.server.max.receive.size",
        Type.INT,
        "524288",
        "Largest request before a client has shown who it is.",
        unit="bytes",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "connection.failed.authentication.delay.ms",
        Type.INT,
        "100",
        "Wait before a connection that failed to authenticate is closed.",
        unit="ms",
        minimum=0,
        dynamic=False,
    ),
)


def _later(name: str, kind: Type, default: str | None, doc: str, dynamic: bool) -> Property:
    return Property(name, kind, default, doc, dynamic=dynamic, effect=Effect.LATER)


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_SECURITY_PACKAGE = "org.apache.kafka.common.security."
_PRINCIPAL_BUILDER = f"{_SECURITY_PACKAGE}authenticator.DefaultKafkaPrincipalBuilder"
_ENGINE_FACTORY = f"{_SECURITY_PACKAGE}ssl.DefaultSslEngineFactory"


def _token(name: str, kind: Type, default: str | None, doc: str, **more: Any) -> Property:
    return Property(f"sasl.oauthbearer.{name}", kind, default, doc, dynamic=False, **more)


_TOKENS = (
    Property(
        "connections.max.reauth.ms",
        Type.LONG,
        "0",
        "How long a login is good, with 0 as long as the connection or the token: then the client logs "
        "in again on the same connection, or is closed when it asks for anything else.",
        unit="ms",
        minimum=0,
        dynamic=False,
    ),
    Property(
        "sasl.server.callback.handler.class",
        Type.CLASS,
        None,
        "What checks logins. Only Kafka's own class for tokens can be named, "
        "`...oauthbearer.OAuthBearerValidatorCallbackHandler`, and need not be.",
        dynamic=False,
    ),
    _token(
        "jwks.endpoint.url",
        Type.STRING,
        None,
        "Where the keys are by which tokens are checked (JWKS): https://... or file:///...",
    ),
    _token(
        "jwks.endpoint.refresh.ms",
        Type.LONG,
        "3600000",
        "How often those keys are fetched again. A token by a key that is not known has them fetched "
        "at once.",
        unit="ms",
        minimum=1000,
    ),
    _token(
        "jwks.endpoint.retry.backoff.ms",
        Type.LONG,
        "100",
        "Wait before they are fetched again when that has failed. It doubles each time.",
        unit="ms",
        minimum=1,
    ),
    _token(
        "jwks.endpoint.retry.backoff.max.ms",
        Type.LONG,
        "10000",
        "Up to this.",
        unit="ms",
        minimum=1,
    ),
    _token("expected.issuer", Type.STRING, None, "Who issues the tokens that are taken (`iss`)."),
    _token(
        "expected.audience",
        Type.LIST,
        "",
        "Whom the tokens that are taken are meant for: one of these has to stand in `aud`.",
    ),
    _token(
        "clock.skew.seconds",
        Type.INT,
        "30",
        "How far clocks may be apart when it is looked whether a token is good now.",
        unit="seconds",
        minimum=0,
    ),
    _token("scope.claim.name", Type.STRING, "scope", "Claim of a token that has its scopes."),
    _token("sub.claim.name", Type.STRING, "sub", "Claim of a token that has the user's name."),
    _token(
        "token.endpoint.url",
        Type.STRING,
        None,
        "Where nodes get the tokens by which they log in at each other: https://... or file:///...",
    ),
    _token(
        "client.credentials.client.id",
        Type.STRING,
        None,
        "Who nodes are where tokens are issued.",
    ),
    _token(
        "client.credentials.client.secret",
        Type.PASSWORD,
        None,
        "The secret by which they are known there.",
    ),
    _token("scope", Type.STRING, None, "What their tokens are for."),
    _token(
        "jwt.validator.class",
        Type.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "What checks tokens: Kafka's own classes only, and kbroker does as they do.",
    ),
)

_DELEGATION_TOKENS = (
    Property(
        "delegation.token.secret.key",
        Type.PASSWORD,
        None,
        "What delegation tokens are made with, the same on all nodes; without it there are none. "
        "With another one all tokens are void.",
        dynamic=False,
    ),
    Property(
        "delegation.token.max.lifetime.ms",
        Type.LONG,
        "604800000",
        "Greatest age of a delegation token, however often it is renewed.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "delegation.token.expiry.time.ms",
        Type.LONG,
        "86400000",
        "How long a delegation token is good until it has to be renewed.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
    Property(
        "delegation.token.expiry.check.interval.ms",
        Type.LONG,
        "3600000",
        "How often delegation tokens that have ended are removed.",
        unit="ms",
        minimum=1,
        dynamic=False,
    ),
)

_SECURITY = (
    Property(
        "authorizer.class.name",
        Type.STRING,
        "",
        f"Who may do what: with {STANDARD_AUTHORIZER} what ACLs allow, and without it everybody may do "
        "everything.",
        choices=("", STANDARD_AUTHORIZER),
        dynamic=False,
    ),
    Property(
        "super.users",
        Type.STRING,
        "",
        "Users who may do everything, whatever ACLs say, as `User:name;User:name`.",
        pattern=r"(\s*[^:;]+:[^;]*(;|$))*",
        pattern_words="User:name;User:name",
        dynamic=False,
    ),
    Property(
        "allow.everyone.if.no.acl.found",
        Type.BOOLEAN,
        "false",
        "Whether everybody may use a resource of which no ACL says anything.",
        dynamic=False,
    ),
    Property(
        "principal.builder.class",
        Type.CLASS,
        _PRINCIPAL_BUILDER,
        "How clients are named: Kafka's own class only, and kbroker does as it does.",
        choices=(_PRINCIPAL_BUILDER,),
        effect=Effect.NONE,
    ),
    Property(
        "sasl.enabled.mechanisms",
        Type.LIST,
        "GSSAPI",
        "SASL mechanisms by which clients may log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    ),
    Property(
        "sasl.plain.over.plaintext.enable",
        Type.BOOLEAN,
        "false",
        "Allow PLAIN authentication on SASL_PLAINTEXT listeners that other machines can reach. "
        "Passwords cross the network unencrypted, so use it only on trusted networks, such as that "
        "of a compose file.",
        dynamic=False,
        own=True,
    ),
    *_TOKENS,
    *_DELEGATION_TOKENS,
    Property(
        "sasl.jaas.config",
        Type.PASSWORD,
        None,
        "Users of a listener with a login, and their passwords: a login module with `user_NAME` "
        "options. Of one mechanism with `listener.name.NAME.MECHANISM.` before it. The setting of all "
        "listeners may have several login modules, one of each class.",
    ),
    Property(
        "sasl.mechanism.inter.broker.protocol",
        Type.STRING,
        "GSSAPI",
        "SASL mechanism by which nodes log in at each other, as who stands in that listener's "
        "sasl.jaas.config of this mechanism.",
    ),
    Property(
        "ssl.client.auth",
        Type.STRING,
        "none",
        "Whether TLS clients must show a certificate.",
        choices=("required", "requested", "none"),
    ),
    Property(
        "ssl.cipher.suites",
        Type.LIST,
        "",
        "TLS cipher suites that may be used, by the names that Java has for them; empty for those that "
        "OpenSSL takes for good ones.",
    ),
    Property(
        "ssl.enabled.protocols", Type.LIST, "TLSv1.2,TLSv1.3", "TLS versions that may be used."
    ),
    Property(
        "ssl.protocol",
        Type.STRING,
        "TLSv1.3",
        "Java's name for how TLS is made. Which versions are spoken is said by ssl.enabled.protocols, in "
        "Kafka as well.",
        choices=("TLS", "TLSv1.2", "TLSv1.3"),
        effect=Effect.NONE,
    ),
    Property(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        "Whether nodes check the name in each other's certificates: https, or nothing.",
    ),
    Property(
        "ssl.engine.factory.class",
        Type.CLASS,
        None,
        "What speaks TLS. Only Kafka's own class can be named, and need not be.",
        choices=(_ENGINE_FACTORY,),
        effect=Effect.NONE,
    ),
    Property(
        "ssl.principal.mapping.rules",
        Type.STRING,
        "DEFAULT",
        "How the subject of a client's certificate becomes its name: `RULE:pattern/replacement/`, with L "
        "or U at its end for lower or upper case, or DEFAULT, the subject as it is. The first rule whose "
        "pattern, of RE2, is the whole subject counts.",
        dynamic=False,
    ),
    Property("ssl.key.password", Type.PASSWORD, None, "Password of the private key."),
    Property(
        "ssl.keystore.certificate.chain",
        Type.PASSWORD,
        None,
        "The node's certificate and its issuers, as PEM text.",
    ),
    Property("ssl.keystore.key", Type.PASSWORD, None, "The node's private key, as PEM text."),
    Property("ssl.keystore.location", Type.STRING, None, "File of the node's certificate."),
    Property("ssl.keystore.password", Type.PASSWORD, None, "Password of that file."),
    Property(
        "ssl.keystore.type",
        Type.STRING,
        "JKS",
        "Format of that file. It is read as what it is, PEM or PKCS#12.",
        effect=Effect.NONE,
    ),
    Property(
        "ssl.truststore.certificates",
        Type.PASSWORD,
        None,
        "Certificates of trusted issuers, as PEM text.",
    ),
    Property(
        "ssl.truststore.location", Type.STRING, None, "File of trusted issuers' certificates."
    ),
    Property("ssl.truststore.password", Type.PASSWORD, None, "Password of that file."),
    Property(
        "ssl.truststore.type",
        Type.STRING,
        "JKS",
        "Format of that file. It is read as what it is, PEM or PKCS#12.",
        effect=Effect.NONE,
    ),
)


def _ignored(
    name: str,
    kind: Type,
    default: str | None,
    doc: str,
    dynamic: bool,
    minimum: int | None = None,
) -> Property:
    return Property(name, kind, default, doc, minimum=minimum, dynamic=dynamic, effect=Effect.NONE)


_IGNORED = (
    Property(
        "process.roles",
        Type.LIST,
        "broker,controller",
        "Roles of this process. Every node of kbroker has both.",
        choices=("broker", "controller"),
        dynamic=False,
        effect=Effect.NONE,
        kafka_default="none: must be set",
    ),
    _ignored(
        "controller.quorum.voters",
        Type.LIST,
        "",
        "Members of Kafka's metadata quorum, which kbroker does not have.",
        False,
    ),
    _ignored(
        "controller.quorum.bootstrap.servers",
        Type.LIST,
        "",
        "Where Kafka's metadata quorum is found.",
        False,
    ),
    Property(
        "controller.listener.names",
        Type.LIST,
        "",
        "Names of the listeners that are for Kafka's controllers: kbroker leaves them out.",
        dynamic=False,
        kafka_default="none: must be set",
    ),
    _ignored("num.network.threads", Type.INT, "3", "Threads for the network.", True, 1),
    _ignored("num.io.threads", Type.INT, "8", "Threads for requests.", True, 1),
    _ignored("background.threads", Type.INT, "10", "Threads for background work.", True, 1),
    _ignored(
        "num.recovery.threads.per.data.dir",
        Type.INT,
        "2",
        "Threads that recover logs at start.",
        True,
        1,
    ),
    _ignored("num.replica.fetchers", Type.INT, "1", "Threads that copy from a leader.", True, 1),
    _ignored(
        "socket.send.buffer.bytes",
        Type.INT,
        "102400",
        "Send buffer of a connection; the operating system sizes it.",
        False,
    ),
    _ignored(
        "socket.receive.buffer.bytes",
        Type.INT,
        "102400",
        "Receive buffer of a connection; the operating system sizes it.",
        False,
    ),
    _ignored(
        "queued.max.requests",
        Type.INT,
        "500",
        "Requests that wait for a thread. `queued.max.request.bytes` bounds them.",
        False,
        1,
    ),
)

_HTTP = (
    Property(
        "http.host",
        Type.STRING,
        "127.0.0.1",
        "Where the console, metrics and probes are served by HTTP. Beyond this machine everybody who reaches "
        "it can read them.",
        dynamic=False,
        own=True,
    ),
    Property(
        "http.port",
        Type.INT,
        "-1",
        "The port for HTTP; 0 is a free one, -1 serves none. The next nodes of a process have those "
        "behind. Needs `kbroker[console]`.",
        minimum=0,
        maximum=65535,
        also=(-1,),
        dynamic=False,
        own=True,
    ),
    Property(
        "http.allowed.hosts",
        Type.LIST,
        "",
        "Names by which HTTP is asked, beside addresses, localhost, names without dots and the name of "
        "this machine; a web page elsewhere can make a browser come by any other name (DNS rebinding).",
        dynamic=False,
        own=True,
    ),
    Property(
        "http.max.connections",
        Type.INT,
        "100",
        "Open connections for HTTP; for one more, the one on which nothing happened for the longest "
        "gives way.",
        minimum=1,
        dynamic=False,
        own=True,
    ),
    Property(
        "http.max.request.bytes",
        Type.INT,
        "1048576",
        "The largest body of an HTTP request.",
        unit="bytes",
        minimum=0,
        dynamic=False,
        own=True,
    ),
    Property(
        "http.console.write",
        Type.BOOLEAN,
        "false",
        "Lets the console write beyond this machine as well: records, offsets of groups, and the ends of "
        "groups and of transactions that hang.",
        dynamic=False,
        own=True,
    ),
    Property(
        "http.request.timeout.ms",
        Type.INT,
        "30000",
        "How long an HTTP request may take, and how long a client may take nothing of its answer.",
        unit="ms",
        minimum=1,
        dynamic=False,
        own=True,
    ),
)

_OTLP = (
    Property(
        "otlp.endpoint",
        Type.STRING,
        "",
        "Where metrics are sent by OTLP over HTTP, such as `http://collector:4318/v1/metrics`; nowhere if "
        "it is empty. Needs `kbroker[otlp]`.",
        dynamic=False,
        own=True,
    ),
    Property(
        "otlp.interval.ms",
        Type.LONG,
        "60000",
        "How often metrics are sent to `otlp.endpoint`.",
        minimum=1000,
        dynamic=False,
        own=True,
    ),
)

_REGISTRY = (
    Property(
        "registry.host",
        Type.STRING,
        "127.0.0.1",
        "Where the schema registry is served by HTTP. Beyond this machine everybody who reaches it can "
        "register and delete schemas; where users log in it is served on this machine only.",
        dynamic=False,
        own=True,
    ),
    Property(
        "registry.port",
        Type.INT,
        "-1",
        "The port of the schema registry; 0 is a free one, -1 serves none. The next nodes of a process "
        "have those behind. Needs `kbroker[registry]`; what `http.*` bounds is bounded here too.",
        minimum=0,
        maximum=65535,
        also=(-1,),
        dynamic=False,
        own=True,
    ),
)

SECTIONS: tuple[tuple[str, tuple[Property, ...]], ...] = (
    ("Node and listeners", _NODE),
    ("Several nodes", _CLUSTER),
    ("Storage", _STORAGE),
    ("Topics", _TOPICS),
    ("Logs", _LOGS),
    ("Consumer groups", _GROUPS),
    ("Groups of the newer protocols", GROUP_BROKER_TABLE),
    ("Producers and transactions", _TRANSACTIONS),
    ("Replication", _REPLICATION),
    ("Limits", _LIMITS),
    ("Security", _SECURITY),
    ("HTTP", _HTTP),
    ("OpenTelemetry", _OTLP),
    ("Schema registry", _REGISTRY),
    ("Accepted for the sake of Kafka's files", _IGNORED),
)
