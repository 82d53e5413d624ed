"""The table of topic settings: all that Apache Kafka 4.3 has."""

from __future__ import annotations

from .property import BOOLEAN, DOUBLE, INT, LIST, LONG, STRING, Effect, Property, Settings

_FOREVER = str(2**63 - 1)
_THROTTLED = r"\*|(\d+:\d+(\s*,\s*\d+:\d+)*)?"
_THROTTLED_WORDS = "* or a list such as 0:1,1:2 (partition:broker)"
_NO_TIERS = "kbroker has no tiered storage, so the value changes nothing."


class TopicSettings(Settings):
    __slots__ = ()

    cleanup_policy = Property(
        "cleanup.policy",
        LIST,
        "delete",
        "What happens to old segments: `delete` drops those beyond the retention limits, `compact` "
        "keeps the last value of every key and refuses records without a key, an empty list keeps "
        "everything.",
        choices=("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    )
    compression_gzip_level = Property(
        "compression.gzip.level",
        INT,
        "-1",
        "Level for batches that the broker compresses with gzip; -1 is the library's choice.",
        minimum=1,
        maximum=9,
        also=(-1,),
        synonyms=("compression.gzip.level",),
    )
    compression_lz4_level = Property(
        "compression.lz4.level",
        INT,
        "9",
        "Level for batches that the broker compresses with lz4; 9 is the fast compressor, as in "
        "Kafka.",
        minimum=1,
        maximum=17,
        synonyms=("compression.lz4.level",),
    )
    compression_type = Property(
        "compression.type",
        STRING,
        "producer",
        "Codec in which batches are stored; `producer` keeps what the producer chose. "
        "Batches in another codec are recompressed when they arrive.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
    )
    compression_zstd_level = Property(
        "compression.zstd.level",
        INT,
        "3",
        "Level for batches that the broker compresses with zstd.",
        minimum=-131072,
        maximum=22,
        synonyms=("compression.zstd.level",),
    )
    delete_retention_ms = Property(
        "delete.retention.ms",
        LONG,
        "86400000",
        "How long a compacted topic keeps the marker of a deleted key, so that a reader who began "
        "at the start still sees the deletion.",
        unit="ms",
        minimum=0,
        synonyms=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms = Property(
        "file.delete.delay.ms",
        LONG,
        "60000",
        "Wait between taking a segment out of the log and removing its files. kbroker removes them "
        "at once: a reader that still sends from one holds it open.",
        unit="ms",
        minimum=0,
        synonyms=("log.segment.delete.delay.ms",),
        effect=Effect.NONE,
    )
    flush_messages = Property(
        "flush.messages",
        LONG,
        _FOREVER,
        "Once this many records of a log are not on disk, the next acknowledgement waits for a "
        "sync. With `flush.policy=fsync` every one does.",
        minimum=1,
        synonyms=("log.flush.interval.messages",),
    )
    flush_ms = Property(
        "flush.ms",
        LONG,
        _FOREVER,
        "A log is synced when its oldest record that is not on disk is this old. With "
        "`flush.policy=fsync` none that is acknowledged waits.",
        unit="ms",
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas = Property(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "Replicas whose copying is throttled on the follower's side.",
        pattern=_THROTTLED,
        pattern_words=_THROTTLED_WORDS,
    )
    index_interval_bytes = Property(
        "index.interval.bytes",
        INT,
        "4096",
        "Bytes of log between two entries of the offset index: fewer find a record faster and make "
        "a larger index. A change holds from the next segment on.",
        unit="bytes",
        minimum=0,
        synonyms=("log.index.interval.bytes",),
    )
    internal_segment_bytes = Property(
        "internal.segment.bytes",
        INT,
        None,
        "Segment size below the limit of `segment.bytes`, for tests that need many segments.",
        unit="bytes",
        minimum=0,
        internal=True,
    )
    leader_replication_throttled_replicas = Property(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "Replicas whose copying is throttled on the leader's side.",
        pattern=_THROTTLED,
        pattern_words=_THROTTLED_WORDS,
    )
    local_retention_bytes = Property(
        "local.retention.bytes",
        LONG,
        "-2",
        f"Size kept on local disk with tiered storage; -2 follows `retention.bytes`. {_NO_TIERS}",
        unit="bytes",
        minimum=-2,
        synonyms=("log.local.retention.bytes",),
        effect=Effect.NONE,
    )
    local_retention_ms = Property(
        "local.retention.ms",
        LONG,
        "-2",
        f"Time kept on local disk with tiered storage; -2 follows `retention.ms`. {_NO_TIERS}",
        unit="ms",
        minimum=-2,
        synonyms=("log.local.retention.ms",),
        effect=Effect.NONE,
    )
    max_compaction_lag_ms = Property(
        "max.compaction.lag.ms",
        LONG,
        _FOREVER,
        "Longest time that a record may wait for compaction.",
        unit="ms",
        minimum=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    )
    max_decompressed_message_bytes = Property(
        "max.decompressed.message.bytes",
        INT,
        "2147483639",
        "Largest record of a compressed batch after decompression. The broker rejects a batch with a "
        "larger one with INVALID_RECORD. `decompressed.batch.max.bytes` limits all records together.",
        unit="bytes",
        minimum=1,
        synonyms=("max.decompressed.message.bytes",),
        internal=True,  # DescribeConfigs answers as Kafka 4.3, which does not know it
    )
    max_message_bytes = Property(
        "max.message.bytes",
        INT,
        "1048588",
        "Largest record batch that the topic takes, as sent (after compression).",
        unit="bytes",
        minimum=0,
        synonyms=("message.max.bytes",),
    )
    message_timestamp_after_max_ms = Property(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "How far a record's timestamp may lie ahead of the broker's clock; beyond it the batch is "
        "refused. Only with `CreateTime`.",
        unit="ms",
        minimum=0,
        synonyms=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms = Property(
        "message.timestamp.before.max.ms",
        LONG,
        _FOREVER,
        "How far a record's timestamp may lie behind the broker's clock; beyond it the batch is "
        "refused. Only with `CreateTime`.",
        unit="ms",
        minimum=0,
        synonyms=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type = Property(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose time a record carries: the producer's, or the broker's when it is appended.",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio = Property(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "Share of a log that must be uncompacted before it is compacted again.",
        minimum=0,
        maximum=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms = Property(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "Shortest time that a record stays uncompacted.",
        unit="ms",
        minimum=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas = Property(
        "min.insync.replicas",
        INT,
        "1",
        "Replicas that must have a record before a producer with `acks=all` gets its answer; "
        "with fewer in sync the write is refused.",
        minimum=1,
        synonyms=("min.insync.replicas",),
    )
    preallocate = Property(
        "preallocate",
        BOOLEAN,
        "false",
        "Reserve a new segment's disk space at once. kbroker's segments always grow as they are "
        "written.",
        synonyms=("log.preallocate",),
        effect=Effect.NONE,
    )
    remote_log_copy_disable = Property(
        "remote.log.copy.disable",
        BOOLEAN,
        "false",
        f"Stop copying segments to tiered storage. {_NO_TIERS}",
        effect=Effect.NONE,
    )
    remote_log_delete_on_disable = Property(
        "remote.log.delete.on.disable",
        BOOLEAN,
        "false",
        f"Delete the copies when tiered storage is switched off. {_NO_TIERS}",
        effect=Effect.NONE,
    )
    remote_storage_enable = Property(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        "Use tiered storage for the topic. kbroker has none, so only `false` is taken, as from a "
        "Kafka broker without it.",
        pattern="(?i)false",
        pattern_words="false (there is no tiered storage)",
        effect=Effect.NONE,
    )
    retention_bytes = Property(
        "retention.bytes",
        LONG,
        "-1",
        "Size of a partition beyond which its oldest segments are dropped; -1 is unlimited.",
        unit="bytes",
        synonyms=("log.retention.bytes",),
    )
    retention_ms = Property(
        "retention.ms",
        LONG,
        "604800000",
        "Age beyond which a segment is dropped, counted from its newest record; -1 is unlimited.",
        unit="ms",
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    _segment_bytes = Property(
        "segment.bytes",
        INT,
        "1073741824",
        "Size at which a new segment file begins. Retention drops whole segments.",
        unit="bytes",
        minimum=1048576,
        synonyms=("log.segment.bytes",),
    )
    segment_index_bytes = Property(
        "segment.index.bytes",
        INT,
        "10485760",
        "Largest size of a segment's index; a full index begins a new segment. A change holds from "
        "the next segment on.",
        unit="bytes",
        minimum=4,
        synonyms=("log.index.size.max.bytes",),
    )
    segment_jitter_ms = Property(
        "segment.jitter.ms",
        LONG,
        "0",
        "Random time taken off `segment.ms`, so that many partitions do not roll together.",
        unit="ms",
        minimum=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms = Property(
        "segment.ms",
        LONG,
        "604800000",
        "Age at which a segment is closed and a new one begins, so that retention can drop it even "
        "in a quiet topic.",
        unit="ms",
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    unclean_leader_election_enable = Property(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "Let a replica that is not in sync become leader when no other lives: available again, "
        "at the price of records. Here only an explicit call elects such a leader "
        "(kafka-leader-election --election-type unclean).",
        synonyms=("unclean.leader.election.enable",),
        effect=Effect.NONE,
    )
