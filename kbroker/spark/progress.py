"""Progress of streaming queries as committed consumer-group offsets.

Spark keeps the offsets of a query in its checkpoint, so Kafka tools cannot show its lag
(SPARK-27549). `commit_progress` commits the offsets to a group after each batch, for Spark's
connector and for ``format("kbroker")``. `lag` computes the lag from a query's progress.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .source.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryListener

logger = logging.getLogger(__name__)


class ProgressCommits:
    """A running committer of query progress, until `stop` is called.

    If a commit fails, it is logged and kept in `last_error`; the query continues. The coordinator
    rejects commits for a group with members: use a group that no consumer joins.
    """

    def __init__(
        self, spark: SparkSession, group: str, kafka: Mapping[str, str], query_id: str | None
    ) -> None:
        from .source.commit import GroupCommits

        self._spark = spark
        self._query_id = query_id
        self._commits = GroupCommits(group, kafka)
        self._listener = _listener(self)
        spark.streams.addListener(self._listener)

    @property
    def last_error(self) -> str | None:
        """Message of the last commit if it failed, otherwise None."""
        return self._commits.last_error

    def commit_offsets(self, query_id: str, sources: list[object]) -> None:
        """Commit the end offsets of a batch.

        Args:
            query_id: ID of the query that finished the batch.
            sources: End offsets of each source, in the form of Spark's progress event.
        """
        from .source.offsets import from_json

        if self._query_id not in (None, query_id):
            return
        for end in sources:
            if offsets := _offsets(end):
                self._commits.commit(from_json(offsets))

    def stop(self) -> None:
        """Remove the listener from Spark and close the Kafka client."""
        self._spark.streams.removeListener(self._listener)
        self._commits.close()


def commit_progress(
    target: StreamingQuery | SparkSession,
    group: str,
    bootstrap_servers: str,
    settings: Mapping[str, str] | None = None,
) -> ProgressCommits:
    """Commit the end offsets of each batch to a consumer group, without joining the group.

    Args:
        target: One query, or a session for all its queries that read from Kafka.
        group: Consumer group; no consumer should use it.
        bootstrap_servers: Addresses of the brokers, as HOST:PORT separated by commas.
        settings: Further client settings under their Java names, such as ``{"security.protocol":
            "SASL_SSL"}``.

    Returns:
        The running committer. Call its `stop` method to end it.

    Raises:
        OptionError: A setting is invalid, or the session is a Spark Connect session.
    """
    from pyspark.sql import SparkSession

    if type(target).__module__.startswith("pyspark.sql.connect."):
        raise OptionError(
            "commit_progress needs a classic session: with Spark Connect the query runs in another "
            'process; read with format("kbroker") and its option commitToGroup instead'
        )
    kafka = {"bootstrap.servers": bootstrap_servers, **(settings or {})}
    if isinstance(target, SparkSession):
        return ProgressCommits(target, group, kafka, None)
    return ProgressCommits(_session_of(target), group, kafka, str(target.id))


def _session_of(query: StreamingQuery) -> SparkSession:
    """Return the session of a query; in other threads the active session may differ or be None."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        raise OptionError("the query's Spark session has stopped: start both again")
    return SparkSession(context, query._jsq.sparkSession())


def lag(progress: Any) -> int | None:
    """Return how many offsets a query is behind its Kafka sources.

    Args:
        progress: An entry of ``query.recentProgress``.

    Returns:
        The lag in offsets. None if the progress lacks the latest offsets, as with
            ``format("kbroker")`` before PySpark 4.2.
    """
    behind = 0
    for source in progress["sources"]:
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        if not latest or not end:
            return None
        behind += sum(
            offset - end.get(topic, {}).get(partition, 0)
            for topic, partitions in latest.items()
            for partition, offset in partitions.items()
        )
    return behind


def _listener(commits: ProgressCommits) -> StreamingQueryListener:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):  # type: ignore[misc]
        """Spark listener for query progress. Spark logs exceptions of its methods and continues."""

        def onQueryStarted(self, event: object) -> None:
            """Do nothing: no batch has been read yet."""

        def onQueryProgress(self, event: Any) -> None:
            """Commit the end offsets of a finished batch."""
            ends = [source.endOffset for source in event.progress.sources]
            commits.commit_offsets(str(event.progress.id), ends)

        def onQueryIdle(self, event: object) -> None:
            """Do nothing: the offsets have not changed."""

        def onQueryTerminated(self, event: object) -> None:
            """Do nothing: all batches have been committed."""

    return Listener()


def _offsets(value: object) -> dict[str, dict[str, int]]:
    """Return Kafka offsets given as a string or a dict, or an empty dict for other sources."""
    read = _json(value) if isinstance(value, str) else value
    if not isinstance(read, dict) or not all(
        isinstance(partitions, dict)
        and all(isinstance(offset, int) for offset in partitions.values())
        and all(number.isdigit() for number in partitions)
        for partitions in read.values()
    ):
        return {}
    return read


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
