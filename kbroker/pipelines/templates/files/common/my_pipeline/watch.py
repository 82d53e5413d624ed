"""Logging of a query's progress."""

from __future__ import annotations

import logging

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

log = logging.getLogger("my_pipeline")


class Watch(StreamingQueryListener):
    """Listener that logs each batch with records, and counts rows that a watermark dropped."""

    def __init__(self) -> None:
        # Rows older than the watermark, which Spark drops silently.
        self.dropped = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        log.info("started")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if progress.numInputRows:
            rate, rows = progress.processedRowsPerSecond, progress.numInputRows
            log.info("batch %d: %d rows, %.0f/s", progress.batchId, rows, rate)
        dropped = sum(each.numRowsDroppedByWatermark for each in progress.stateOperators)
        if dropped:
            self.dropped += dropped
            log.warning("batch %d: dropped %d late rows", progress.batchId, dropped)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        log.info("stopped")
