"""A job that dies at the worst moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


def forget_last_commit(query: StreamingQuery, checkpoint: Path) -> None:
    """Leave the checkpoint as a job does that dies between the write of a batch and its commit.

    It is the last batch that wrote something, so what Spark did after it has left no trace but in the
    checkpoint.
    """
    batch = max(one.batchId for one in query.recentProgress if one.sink.numOutputRows > 0)
    for kind, first in (("commits", batch), ("offsets", batch + 1)):
        for path in (checkpoint / kind).iterdir():
            if int(path.name.strip(".").split(".")[0]) >= first:
                path.unlink()
