"""The topic settings of a log."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.protocol.checksum import crc32c
from kbroker.protocol.records import DEFAULT_RULES, ProduceRules

from .segment import SegmentRules

# A time in ms that never passes.
FOREVER_MS = (1 << 63) - 1

# Factor that spreads a 32-bit checksum over any jitter range.
_JITTER_STEP = 6_364_136_223_846_793_005


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The topic settings of a log, in bytes and milliseconds; -1 means no limit.

    `produce_rules` are not applied by the log, but by the validation before `Log.append`.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER_MS
    delete_retention_ms: int = 86_400_000
    producer_expiration_ms: int = 86_400_000
    produce_rules: ProduceRules = DEFAULT_RULES

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def segment_rules(self) -> SegmentRules:
        return SegmentRules(
            self.index_interval_bytes, self.segment_index_bytes, gaps_allowed=self.compacted
        )

    @property
    def segment_age_ms(self) -> int:
        """Maximum age difference in ms of the records of a segment."""
        if not self.compacted:
            return self.segment_ms
        return min(self.segment_ms, self.max_compaction_lag_ms)

    def roll_after_ms(self, segment_name: str) -> int:
        """Return the time in ms after which a segment is rolled, minus its jitter.

        The jitter depends on the segment name, so it is the same after a restart.
        """
        longest = self.segment_age_ms
        jitter_ms = min(self.segment_jitter_ms, longest)
        if jitter_ms <= 0:
            return longest
        return longest - crc32c(segment_name.encode()) * _JITTER_STEP % jitter_ms
