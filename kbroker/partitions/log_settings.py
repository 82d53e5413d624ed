"""Conversion of topic settings to the settings of the log store."""

from __future__ import annotations

from types import MappingProxyType

from kbroker.config import TopicConfig
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import ProduceRules
from kbroker.storage.log_config import LogConfig


def log_config(topic: TopicConfig) -> LogConfig:
    """Return the log settings of a topic: segments, retention, compaction, and batch limits."""
    return LogConfig(
        segment_bytes=topic.segment_bytes,
        segment_ms=topic.segment_ms,
        segment_jitter_ms=topic.segment_jitter_ms,
        segment_index_bytes=topic.segment_index_bytes,
        index_interval_bytes=topic.index_interval_bytes,
        retention_bytes=topic.retention_bytes,
        retention_ms=topic.retention_ms,
        cleanup_policy=frozenset(topic.cleanup_policy),
        min_cleanable_dirty_ratio=topic.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=topic.min_compaction_lag_ms,
        max_compaction_lag_ms=topic.max_compaction_lag_ms,
        delete_retention_ms=topic.delete_retention_ms,
        producer_expiration_ms=topic.broker.producer_id_expiration_ms,
        produce_rules=ProduceRules(
            max_message_bytes=topic.max_message_bytes,
            compacted=topic.compacted,
            log_append_time=topic.message_timestamp_type == "LogAppendTime",
            timestamp_before_max_ms=topic.message_timestamp_before_max_ms,
            timestamp_after_max_ms=topic.message_timestamp_after_max_ms,
            max_decompressed=topic.broker.decompressed_batch_max_bytes,
            max_record_bytes=topic.max_decompressed_message_bytes,
            max_records=topic.broker.batch_max_records,
            max_headers=topic.broker.batch_max_headers,
            max_record_headers=topic.broker.record_max_headers,
            codec=_CODECS.get(topic.compression_type),
            compression_level=_compression_level(topic),
        ),
    )


_CODECS = MappingProxyType(
    {
        "uncompressed": Codec.NONE,
        "gzip": Codec.GZIP,
        "snappy": Codec.SNAPPY,
        "lz4": Codec.LZ4,
        "zstd": Codec.ZSTD,
    }
)


def _compression_level(topic: TopicConfig) -> int | None:
    match topic.compression_type:
        case "gzip":
            return topic.compression_gzip_level
        case "lz4":
            return topic.compression_lz4_level
        case "zstd":
            return topic.compression_zstd_level
    return None
