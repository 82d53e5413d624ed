"""Says how a query is getting on."""

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
    """Logs each batch that had records, and counts what a watermark dropped."""

    def __init__(self) -> None:
        self.dropped = 0
        """Rows that came after the watermark had passed them. Spark itself drops them silently."""

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
            log.warning("batch %d: %d rows came too late", progress.batchId, dropped)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        log.info("stopped")
