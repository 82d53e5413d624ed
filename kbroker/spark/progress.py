"""Progress of streaming queries where Kafka's tools look for it: in a consumer group.

Spark keeps the offsets of a query in its checkpoint, so that no Kafka tool shows how far behind it is
(SPARK-27549). `commit_progress` commits them to a group after each batch, for Spark's connector and
for ``format("kbroker")``; `lag` reads them out of a query's progress.
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
    """Commits that go on until `stop`.

    Resource handling: `stop` takes the listener away and ends the client.

    Error handling: a commit that fails is logged and stands in `last_error`; a query does not fail
    for it. A group with members refuses commits: name one that nobody else uses.
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
        """Why the last commit failed; None when it did not."""
        return self._commits.last_error

    def take(self, query_id: str, sources: list[object]) -> None:
        """Commit the end offsets of a batch, given as Spark's progress has them."""
        from .source.offsets import from_json

        if self._query_id not in (None, query_id):
            return
        for end in sources:
            if offsets := _offsets(end):
                self._commits.commit(from_json(offsets))

    def stop(self) -> None:
        """Commit no more."""
        self._spark.streams.removeListener(self._listener)
        self._commits.close()


def commit_progress(
    target: StreamingQuery | SparkSession,
    group: str,
    bootstrap_servers: str,
    settings: Mapping[str, str] | None = None,
) -> ProgressCommits:
    """Commit the end offsets of each batch to a consumer group, which is never joined.

    Parameters: `target` is one query, or a session for all queries that it starts and that read
    Kafka; `group` is best used for nothing else; `settings` are further settings of the client, under
    Java's names (``{"security.protocol": "SASL_SSL", ...}``).

    Raises:
        OptionError: settings are not usable, or the session is one of Spark Connect.
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
    """Return the session of a query. The active session is another one, or none, in other threads."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        raise OptionError("the query's Spark session has stopped: start both again")
    return SparkSession(context, query._jsq.sparkSession())


def lag(progress: Any) -> int | None:
    """How many offsets a query is behind its Kafka sources, of an entry of ``query.recentProgress``.

    None when the progress does not say it: before PySpark 4.2 ``format("kbroker")`` cannot.
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
        """Spark calls it; what goes wrong in it Spark only logs."""

        def onQueryStarted(self, event: object) -> None:
            """Nothing is read yet."""

        def onQueryProgress(self, event: Any) -> None:
            """A batch is done."""
            ends = [source.endOffset for source in event.progress.sources]
            commits.take(str(event.progress.id), ends)

        def onQueryIdle(self, event: object) -> None:
            """Nothing has changed."""

        def onQueryTerminated(self, event: object) -> None:
            """All batches have been told of."""

    return Listener()


def _offsets(value: object) -> dict[str, dict[str, int]]:
    """Offsets of Kafka, as text or as objects; of another kind of source nothing."""
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
