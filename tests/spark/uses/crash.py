"""Simulated crash of a Spark job between the write of a batch and its commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryProgress


def forget_last_commit(query: StreamingQuery, checkpoint: Path) -> None:
    """Remove the commit of the last batch that wrote rows from the checkpoint, and later entries.

    The checkpoint then looks as after a crash between the write of that batch and its commit. Later
    batches wrote no rows, so they exist only in the checkpoint.
    """
    batch = max(progress.batchId for progress in query.recentProgress if _has_written(progress))
    for kind, first in (("commits", batch), ("offsets", batch + 1)):
        for path in (checkpoint / kind).iterdir():
            if int(path.name.strip(".").split(".")[0]) >= first:
                path.unlink()


def _has_written(batch: StreamingQueryProgress) -> bool:
    """Return True if a batch wrote rows.

    With foreachBatch, Spark reports -1 output rows; a batch with input rows then counts.
    """
    written: int = batch.sink.numOutputRows
    return (batch.numInputRows if written < 0 else written) > 0
