"""The table of topic settings: all that Apache Kafka 4.3 has."""

from __future__ import annotations

from .property import Effect, Property, Type

_FOREVER = str(2**63 - 1)
_THROTTLED = r"\*|(\d+:\d+(\s*,\s*\d+:\d+)*)?"
_THROTTLED_WORDS = "* or a list such as 0:1,1:2 (partition:broker)"
_NO_TIERS = "kbroker has no tiered storage, so the value changes nothing."

TOPIC_TABLE: tuple[Property, ...] = (
    Property(
        "cleanup.policy",
        Type.LIST,
        "delete",
        "What happens to old segments: `delete` drops those beyond the retention limits, `compact` "
        "keeps the last value of every key and refuses records without a key, an empty list keeps "
        "everything.",
        choices=("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    ),
    Property(
        "compression.gzip.level",
        Type.INT,
        "-1",
        "Level for batches that the broker compresses with gzip; -1 is the library's choice.",
        minimum=1,
        maximum=9,
        also=(-1,),
        synonyms=("compression.gzip.level",),
    ),
    Property(
        "compression.lz4.level",
        Type.INT,
        "9",
        "Level for batches that the broker compresses with lz4; 9 is the fast compressor, as in "
        "Kafka.",
        minimum=1,
        maximum=17,
        synonyms=("compression.lz4.level",),
    ),
    Property(
        "compression.type",
        Type.STRING,
        "producer",
        "Codec in which batches are stored; `producer` keeps what the producer chose. "
        "Batches in another codec are recompressed when they arrive.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
    ),
    Property(
        "compression.zstd.level",
        Type.INT,
        "3",
        "Level for batches that the broker compresses with zstd.",
        minimum=-131072,
        maximum=22,
        synonyms=("compression.zstd.level",),
    ),
    Property(
        "delete.retention.ms",
        Type.LONG,
        "86400000",
        "How long a compacted topic keeps the marker of a deleted key, so that a reader who began "
        "at the start still sees the deletion.",
        unit="ms",
        minimum=0,
        synonyms=("log.cleaner.delete.retention.ms",),
    ),
    Property(
        "file.delete.delay.ms",
        Type.LONG,
        "60000",
        "Wait between taking a segment out of the log and removing its files. kbroker removes them "
        "at once: a reader that still sends from one holds it open.",
        unit="ms",
        minimum=0,
        synonyms=("log.segment.delete.delay.ms",),
        effect=Effect.NONE,
    ),
    Property(
        "flush.messages",
        Type.LONG,
        _FOREVER,
        "Once this many records of a log are not on disk, the next acknowledgement waits for a "
        "sync. With `flush.policy=fsync` every one does.",
        minimum=1,
        synonyms=("log.flush.interval.messages",),
    ),
    Property(
        "flush.ms",
        Type.LONG,
        _FOREVER,
        "A log is synced when its oldest record that is not on disk is this old. With "
        "`flush.policy=fsync` none that is acknowledged waits.",
        unit="ms",
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    Property(
        "follower.replication.throttled.replicas",
        Type.LIST,
        "",
        "Replicas whose copying is throttled on the follower's side.",
        pattern=_THROTTLED,
        pattern_words=_THROTTLED_WORDS,
    ),
    Property(
        "index.interval.bytes",
        Type.INT,
        "4096",
        "Bytes of log between two entries of the offset index: fewer find a record faster and make "
        "a larger index. A change holds from the next segment on.",
        unit="bytes",
        minimum=0,
        synonyms=("log.index.interval.bytes",),
    ),
    Property(
        "internal.segment.bytes",
        Type.INT,
        None,
        "Segment size below the limit of `segment.bytes`, for tests that need many segments.",
        unit="bytes",
        minimum=0,
        internal=True,
    ),
    Property(
        "leader.replication.throttled.replicas",
        Type.LIST,
        "",
        "Replicas whose copying is throttled on the leader's side.",
        pattern=_THROTTLED,
        pattern_words=_THROTTLED_WORDS,
    ),
    Property(
        "local.retention.bytes",
        Type.LONG,
        "-2",
        f"Size kept on local disk with tiered storage; -2 follows `retention.bytes`. {_NO_TIERS}",
        unit="bytes",
        minimum=-2,
        synonyms=("log.local.retention.bytes",),
        effect=Effect.NONE,
    ),
    Property(
        "local.retention.ms",
        Type.LONG,
        "-2",
        f"Time kept on local disk with tiered storage; -2 follows `retention.ms`. {_NO_TIERS}",
        unit="ms",
        minimum=-2,
        synonyms=("log.local.retention.ms",),
        effect=Effect.NONE,
    ),
    Property(
        "max.compaction.lag.ms",
        Type.LONG,
        _FOREVER,
        "Longest time that a record may wait for compaction.",
        unit="ms",
        minimum=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    ),
    Property(
        "max.decompressed.message.bytes",
        Type.INT,
        "2147483639",
        "Largest record of a compressed batch after decompression. The broker rejects a batch with a "
        "larger one with INVALID_RECORD. `decompressed.batch.max.bytes` limits all records together.",
        unit="bytes",
        minimum=1,
        synonyms=("max.decompressed.message.bytes",),
        internal=True,  # DescribeConfigs answers as Kafka 4.3, which does not know it
    ),
    Property(
        "max.message.bytes",
        Type.INT,
        "1048588",
        "Largest record batch that the topic takes, as sent (after compression).",
        unit="bytes",
        minimum=0,
        synonyms=("message.max.bytes",),
    ),
    Property(
        "message.timestamp.after.max.ms",
        Type.LONG,
        "3600000",
        "How far a record's timestamp may lie ahead of the broker's clock; beyond it the batch is "
        "refused. Only with `CreateTime`.",
        unit="ms",
        minimum=0,
        synonyms=("log.message.timestamp.after.max.ms",),
    ),
    Property(
        "message.timestamp.before.max.ms",
        Type.LONG,
        _FOREVER,
        "How far a record's timestamp may lie behind the broker's clock; beyond it the batch is "
        "refused. Only with `CreateTime`.",
        unit="ms",
        minimum=0,
        synonyms=("log.message.timestamp.before.max.ms",),
    ),
    Property(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Whose time a record carries: the producer's, or the broker's when it is appended.",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    ),
    Property(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        "0.5",
        "Share of a log that must be uncompacted before it is compacted again.",
        minimum=0,
        maximum=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
    ),
    Property(
        "min.compaction.lag.ms",
        Type.LONG,
        "0",
        "Shortest time that a record stays uncompacted.",
        unit="ms",
        minimum=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    ),
    Property(
        "min.insync.replicas",
        Type.INT,
        "1",
        "Replicas that must have a record before a producer with `acks=all` gets its answer; "
        "with fewer in sync the write is refused.",
        minimum=1,
        synonyms=("min.insync.replicas",),
    ),
    Property(
        "preallocate",
        Type.BOOLEAN,
        "false",
        "Reserve a new segment's disk space at once. kbroker's segments always grow as they are "
        "written.",
        synonyms=("log.preallocate",),
        effect=Effect.NONE,
    ),
    Property(
        "remote.log.copy.disable",
        Type.BOOLEAN,
        "false",
        f"Stop copying segments to tiered storage. {_NO_TIERS}",
        effect=Effect.NONE,
    ),
    Property(
        "remote.log.delete.on.disable",
        Type.BOOLEAN,
        "false",
        f"Delete the copies when tiered storage is switched off. {_NO_TIERS}",
        effect=Effect.NONE,
    ),
    Property(
        "remote.storage.enable",
        Type.BOOLEAN,
        "false",
        "Use tiered storage for the topic. kbroker has none, so only `false` is taken, as from a "
        "Kafka broker without it.",
        pattern="(?i)false",
        pattern_words="false (there is no tiered storage)",
        effect=Effect.NONE,
    ),
    Property(
        "retention.bytes",
        Type.LONG,
        "-1",
        "Size of a partition beyond which its oldest segments are dropped; -1 is unlimited.",
        unit="bytes",
        synonyms=("log.retention.bytes",),
    ),
    Property(
        "retention.ms",
        Type.LONG,
        "604800000",
        "Age beyond which a segment is dropped, counted from its newest record; -1 is unlimited.",
        unit="ms",
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Property(
        "segment.bytes",
        Type.INT,
        "1073741824",
        "Size at which a new segment file begins. Retention drops whole segments.",
        unit="bytes",
        minimum=1048576,
        synonyms=("log.segment.bytes",),
    ),
    Property(
        "segment.index.bytes",
        Type.INT,
        "10485760",
        "Largest size of a segment's index; a full index begins a new segment. A change holds from "
        "the next segment on.",
        unit="bytes",
        minimum=4,
        synonyms=("log.index.size.max.bytes",),
    ),
    Property(
        "segment.jitter.ms",
        Type.LONG,
        "0",
        "Random time taken off `segment.ms`, so that many partitions do not roll together.",
        unit="ms",
        minimum=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    Property(
        "segment.ms",
        Type.LONG,
        "604800000",
        "Age at which a segment is closed and a new one begins, so that retention can drop it even "
        "in a quiet topic.",
        unit="ms",
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    Property(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        "false",
        "Let a replica that is not in sync become leader when no other lives: available again, "
        "at the price of records. Here only an explicit call elects such a leader "
        "(kafka-leader-election --election-type unclean).",
        synonyms=("unclean.leader.election.enable",),
        effect=Effect.NONE,
    ),
)
