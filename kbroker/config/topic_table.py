"""Topic settings: all settings of Apache Kafka 4.4."""

from __future__ import annotations

from .broker_table import RECORD_BYTES_MAX
from .property import BOOLEAN, DOUBLE, INT, LIST, LONG, STRING, Property, SettingEffect, Settings

_FOREVER = str(2**63 - 1)
_THROTTLED = r"\*|(\d+:\d+(\s*,\s*\d+:\d+)*)?"
_THROTTLED_WORDS = "* or a list such as 0:1,1:2 (partition:broker)"
_NO_TIERS = "kbroker does not support tiered storage."


class TopicSettings(Settings):
    __slots__ = ()

    cleanup_policy = Property(
        "cleanup.policy",
        LIST,
        "delete",
        "Cleanup policy of the topic: `delete` deletes segments beyond the retention limits, "
        "`compact` keeps the last record of each key and rejects records without a key. An empty "
        "list keeps everything.",
        choices=("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    )
    compression_gzip_level = Property(
        "compression.gzip.level",
        INT,
        "-1",
        "Compression level if the broker compresses with gzip; -1 means the default of the "
        "library.",
        minimum=1,
        maximum=9,
        extra_numbers=(-1,),
        synonyms=("compression.gzip.level",),
    )
    compression_lz4_level = Property(
        "compression.lz4.level",
        INT,
        "9",
        "Compression level if the broker compresses with lz4; 9 selects the fast compressor, as "
        "in Kafka.",
        minimum=1,
        maximum=17,
        synonyms=("compression.lz4.level",),
    )
    compression_type = Property(
        "compression.type",
        STRING,
        "producer",
        "Compression codec in which batches are stored; `producer` keeps the codec of the "
        "producer. The broker recompresses batches with another codec.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
    )
    compression_zstd_level = Property(
        "compression.zstd.level",
        INT,
        "3",
        "Compression level if the broker compresses with zstd.",
        minimum=-131072,
        maximum=22,
        synonyms=("compression.zstd.level",),
    )
    delete_retention_ms = Property(
        "delete.retention.ms",
        LONG,
        "86400000",
        "How long tombstones (records that delete a key) are kept in a compacted topic. A "
        "consumer that started at the beginning sees all deletions if it finishes within this "
        "time.",
        unit="ms",
        minimum=0,
        synonyms=("log.cleaner.delete.retention.ms",),
    )
    errors_deadletterqueue_group_enable = Property(
        "errors.deadletterqueue.group.enable",
        BOOLEAN,
        "false",
        "If true, share groups may use the topic as their dead-letter queue and write records to it "
        "that they could not deliver.",
    )
    file_delete_delay_ms = Property(
        "file.delete.delay.ms",
        LONG,
        "60000",
        "How long to wait before the files of a deleted segment are removed. kbroker removes them "
        "at once; a read in progress keeps the file open.",
        unit="ms",
        minimum=0,
        synonyms=("log.segment.delete.delay.ms",),
        effect=SettingEffect.NONE,
    )
    flush_messages = Property(
        "flush.messages",
        LONG,
        _FOREVER,
        "Maximum number of records in a log that are not yet on disk. At this number, the next "
        "acknowledgement waits for an fsync. No effect with `flush.policy=fsync`, which syncs "
        "before each acknowledgement.",
        minimum=1,
        synonyms=("log.flush.interval.messages",),
    )
    flush_ms = Property(
        "flush.ms",
        LONG,
        _FOREVER,
        "Maximum time that a record is in memory only before the log is synced. No effect with "
        "`flush.policy=fsync`, which syncs before each acknowledgement.",
        unit="ms",
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas = Property(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "List of replicas whose replication is throttled on the follower side.",
        pattern=_THROTTLED,
        pattern_words=_THROTTLED_WORDS,
    )
    index_interval_bytes = Property(
        "index.interval.bytes",
        INT,
        "4096",
        "Interval, in bytes of log, between two entries of the offset index. A smaller interval "
        "makes lookups faster and the index larger. A change applies to new segments.",
        unit="bytes",
        minimum=0,
        synonyms=("log.index.interval.bytes",),
    )
    internal_segment_bytes = Property(
        "internal.segment.bytes",
        INT,
        None,
        "Segment size, which may be below the minimum of `segment.bytes`. For tests that need "
        "many segments.",
        unit="bytes",
        minimum=0,
        internal=True,
    )
    leader_replication_throttled_replicas = Property(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "List of replicas whose replication is throttled on the leader side.",
        pattern=_THROTTLED,
        pattern_words=_THROTTLED_WORDS,
    )
    local_retention_bytes = Property(
        "local.retention.bytes",
        LONG,
        "-2",
        f"Maximum size of the local log with tiered storage; -2 means `retention.bytes`. {_NO_TIERS}",
        unit="bytes",
        minimum=-2,
        synonyms=("log.local.retention.bytes",),
        effect=SettingEffect.NONE,
    )
    local_retention_ms = Property(
        "local.retention.ms",
        LONG,
        "-2",
        f"How long segments are kept locally with tiered storage; -2 means `retention.ms`. {_NO_TIERS}",
        unit="ms",
        minimum=-2,
        synonyms=("log.local.retention.ms",),
        effect=SettingEffect.NONE,
    )
    max_compaction_lag_ms = Property(
        "max.compaction.lag.ms",
        LONG,
        _FOREVER,
        "Maximum time that a record stays uncompacted.",
        unit="ms",
        minimum=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    )
    max_decompressed_message_bytes = Property(
        "max.decompressed.message.bytes",
        INT,
        str(RECORD_BYTES_MAX),
        "Maximum size of one record of a compressed batch after decompression. The broker rejects "
        "a batch with a larger record with INVALID_RECORD. If a larger record is already stored, "
        "look-ups by timestamp that reach it fail, and its partition is not compacted. "
        "`decompressed.batch.max.bytes` limits the whole batch.",
        unit="bytes",
        minimum=1,
        maximum=RECORD_BYTES_MAX,
        synonyms=("max.decompressed.message.bytes",),
    )
    max_message_bytes = Property(
        "max.message.bytes",
        INT,
        "1048588",
        "Maximum size of a record batch, after compression.",
        unit="bytes",
        minimum=0,
        synonyms=("message.max.bytes",),
    )
    message_timestamp_after_max_ms = Property(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "Maximum time by which the timestamp of a record may be ahead of the broker's clock. The "
        "broker rejects a batch beyond it. Only with `message.timestamp.type=CreateTime`.",
        unit="ms",
        minimum=0,
        synonyms=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms = Property(
        "message.timestamp.before.max.ms",
        LONG,
        _FOREVER,
        "Maximum time by which the timestamp of a record may be behind the broker's clock. The "
        "broker rejects a batch beyond it. Only with `message.timestamp.type=CreateTime`.",
        unit="ms",
        minimum=0,
        synonyms=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type = Property(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Timestamp of a record: the time when the producer created it, or the time when the "
        "broker appended it.",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio = Property(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "Minimum ratio of uncompacted to total log size before the log is compacted again.",
        minimum=0,
        maximum=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms = Property(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "Minimum time that a record stays uncompacted.",
        unit="ms",
        minimum=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas = Property(
        "min.insync.replicas",
        INT,
        "1",
        "Minimum number of in-sync replicas that must have a record before a write with "
        "`acks=all` succeeds. With fewer in-sync replicas the write is rejected.",
        minimum=1,
        synonyms=("min.insync.replicas",),
    )
    preallocate = Property(
        "preallocate",
        BOOLEAN,
        "false",
        "If true, the disk space of a new segment is allocated in advance. In kbroker segments "
        "always grow as they are written.",
        synonyms=("log.preallocate",),
        effect=SettingEffect.NONE,
    )
    remote_copy_lag_bytes = Property(
        "remote.copy.lag.bytes",
        LONG,
        "-1",
        "Minimum size of the newer records in the local log before a closed segment is copied to "
        f"tiered storage; -1 means `local.retention.bytes`. {_NO_TIERS}",
        unit="bytes",
        minimum=-1,
        synonyms=("log.remote.copy.lag.bytes",),
        effect=SettingEffect.NONE,
    )
    remote_copy_lag_ms = Property(
        "remote.copy.lag.ms",
        LONG,
        "0",
        "Minimum age of the newest record of a closed segment before the segment is copied to tiered "
        f"storage; -1 means `local.retention.ms`. {_NO_TIERS}",
        unit="ms",
        minimum=-1,
        synonyms=("log.remote.copy.lag.ms",),
        effect=SettingEffect.NONE,
    )
    remote_log_copy_disable = Property(
        "remote.log.copy.disable",
        BOOLEAN,
        "false",
        f"If true, segments are not copied to tiered storage. {_NO_TIERS}",
        effect=SettingEffect.NONE,
    )
    remote_log_delete_on_disable = Property(
        "remote.log.delete.on.disable",
        BOOLEAN,
        "false",
        f"If true, remote segments are deleted when tiered storage is disabled. {_NO_TIERS}",
        effect=SettingEffect.NONE,
    )
    remote_storage_enable = Property(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        "If true, the topic uses tiered storage. Only `false` is accepted, as on a Kafka broker "
        "without tiered storage.",
        pattern="(?i)false",
        pattern_words="false (there is no tiered storage)",
        effect=SettingEffect.NONE,
    )
    retention_bytes = Property(
        "retention.bytes",
        LONG,
        "-1",
        "Maximum size of a partition before its oldest segments are deleted; -1 means no limit.",
        unit="bytes",
        synonyms=("log.retention.bytes",),
    )
    retention_ms = Property(
        "retention.ms",
        LONG,
        "604800000",
        "How long a segment is kept after its newest record before it is deleted; -1 means no "
        "limit.",
        unit="ms",
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    _segment_bytes = Property(
        "segment.bytes",
        INT,
        "1073741824",
        "Maximum size of a segment file. When it is reached, a new segment is rolled. Retention "
        "deletes whole segments.",
        unit="bytes",
        minimum=1048576,
        synonyms=("log.segment.bytes",),
    )
    segment_index_bytes = Property(
        "segment.index.bytes",
        INT,
        "10485760",
        "Maximum size of the offset index of a segment. When the index is full, a new segment is "
        "rolled. A change applies to new segments.",
        unit="bytes",
        minimum=4,
        synonyms=("log.index.size.max.bytes",),
    )
    segment_jitter_ms = Property(
        "segment.jitter.ms",
        LONG,
        "0",
        "Maximum random time that is subtracted from `segment.ms`, so that not all partitions "
        "roll at the same time.",
        unit="ms",
        minimum=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms = Property(
        "segment.ms",
        LONG,
        "604800000",
        "Maximum time before a new segment is rolled, so that retention can delete the old one "
        "even if the topic gets few records.",
        unit="ms",
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    unclean_leader_election_enable = Property(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "If true, a replica outside the ISR can become leader if no other replica is available, "
        "which can lose records. In kbroker only an explicit request elects such a replica "
        "(`kafka-leader-election --election-type unclean`).",
        synonyms=("unclean.leader.election.enable",),
        effect=SettingEffect.NONE,
    )
