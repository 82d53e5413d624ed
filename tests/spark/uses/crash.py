"""A job that dies at the worst moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryProgress


def forget_last_commit(query: StreamingQuery, checkpoint: Path) -> None:
    """Leave the checkpoint as a job does that dies between the write of a batch and its commit.

    It is the last batch that wrote something, so what Spark did after it has left no trace but in the
    checkpoint.
    """
    batch = max(one.batchId for one in query.recentProgress if _has_written(one))
    for kind, first in (("commits", batch), ("offsets", batch + 1)):
        for path in (checkpoint / kind).iterdir():
            if int(path.name.strip(".").split(".")[0]) >= first:
                path.unlink()


def _has_written(batch: StreamingQueryProgress) -> bool:
    """For foreachBatch Spark knows only what went in (-1 came out)."""
    written: int = batch.sink.numOutputRows
    return (batch.numInputRows if written < 0 else written) > 0
