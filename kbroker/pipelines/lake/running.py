"""Runner of the archiver: one streaming query per topic, with restarts and progress events.

A query that ends because no broker responds is restarted when one does. Its checkpoint and the
lake's journal determine where it continues.
"""

from __future__ import annotations

import fnmatch
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .archiver import Archiver, Conf
from .brokers import Brokers, BrokerUnavailableError
from .commits import Counts, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_POLL_SECONDS = 0.5
_BROKER_CHECK_SECONDS = 5.0
_FIND_TOPICS_SECONDS = 30.0
_RETRY_BACKOFF_SECONDS = 1.0
# Error texts of the Java and C clients if a broker is temporarily unavailable.
_TRANSIENT = (
    "TimeoutException",
    "Cannot fetch record",
    "DisconnectException",
    "NotLeaderOrFollower",
    "LeaderNotAvailable",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
)

# Event handler: gets the name and the properties of each event.
EventHandler = Callable[[str, dict[str, object]], None]


@dataclass
class _Running:
    """A topic with its running query."""

    archiver: Archiver
    query: StreamingQuery
    reported_batch: int = -1


class Runner:
    """Archives topics with one Spark session."""

    def __init__(
        self,
        make_session: Callable[[], tuple[SparkSession, str]],
        conf: Conf,
        topics: Sequence[str],
        on_event: EventHandler,
    ) -> None:
        """Create the runner; the session is created once a broker responds and has the topics.

        Args:
            make_session: Returns the session and the name of its Kafka source.
            conf: Configuration, except for the topic.
            topics: Topic names, or patterns with ``*`` and ``?``.
            on_event: Event handler.
        """
        self._make_session = make_session
        self._spark: SparkSession | None = None
        self._conf, self._topics, self._report = conf, topics, on_event
        self._brokers = Brokers(conf.bootstrap, conf.options)
        self._running: dict[str, _Running] = {}
        self._done: dict[str, Counts] = {}
        self._finished: set[str] = set()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Make `run` return soon. May be called from a signal handler."""
        self._stop.set()

    def run(self) -> dict[str, Counts]:
        """Archive the topics until done or stopped.

        Returns:
            The records archived by this run, by topic.

        Raises:
            LakeError: A topic cannot be archived; the message names the next action.
        """
        try:
            self._archive_all()
        except LakeError:
            raise
        except Exception:
            # The signal also ended the JVM, so errors after a stop are expected.
            if not self._stop.is_set():
                raise
        return self._done

    def _archive_all(self) -> None:
        """Archive until the topics are complete (`once`), or until `stop` is called."""
        try:
            if self._conf.once:
                for name in self._find_topics():
                    self._archive_one(name)
            else:
                self._archive_continuously()
        finally:
            self._stop_all_queries()

    def _archive_one(self, name: str) -> None:
        """Archive the current records of a topic; restart its query if brokers were unavailable."""
        while not self._stop.is_set() and name not in self._finished:
            self._start_query(name)
            while name in self._running and not self._stop.wait(_POLL_SECONDS):
                self._check_query(name)

    def _archive_continuously(self) -> None:
        """Archive all selected topics until `stop` is called, including topics created later."""
        find_at = check_at = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= find_at:
                found = self._find_topics()
                for name in found:
                    if name not in self._running:
                        self._start_query(name)
                started = self._running.keys() >= set(found)
                find_at = now + (_FIND_TOPICS_SECONDS if started else _RETRY_BACKOFF_SECONDS)
            if now >= check_at:
                self._wait_for_broker()
                check_at = time.monotonic() + _BROKER_CHECK_SECONDS
            for name in list(self._running):
                self._check_query(name)
                if name not in self._running:
                    find_at = 0.0
            self._stop.wait(_POLL_SECONDS)

    def _find_topics(self) -> list[str]:
        """Return the selected topics that exist; wait for a broker if necessary."""
        existing = self._wait_for_broker()
        if self._stop.is_set():
            return []
        found = {one for pattern in self._topics for one in _matching(pattern, existing)}
        missing = [one for one in self._topics if not _is_pattern(one) and one not in existing]
        if missing:
            raise LakeError(
                f"topic {missing[0]} does not exist on {self._conf.bootstrap}: create it first "
                f"(kbroker topic create {missing[0]})"
            )
        if not found and self._conf.once:
            raise LakeError(f"no topic on {self._conf.bootstrap} matches {self._topics[0]}")
        return sorted(found)

    def _wait_for_broker(self) -> list[str]:
        """Return the topics of the cluster once a broker responds; report a wait."""
        began = time.monotonic()
        waiting = False
        while not self._stop.is_set():
            try:
                names = self._brokers.names()
            except BrokerUnavailableError as error:
                if not waiting:
                    self._report("waiting", {"why": str(error)})
                waiting = True
                self._stop.wait(_POLL_SECONDS)
                continue
            if waiting:
                self._report("back", {"seconds": round(time.monotonic() - began, 1)})
            return names
        return []

    def _start_query(self, name: str) -> None:
        if self._spark is None:
            self._spark, source = self._make_session()
            self._conf = replace(self._conf, source=source)
        if self._stop.is_set():
            return  # stopped while Spark was starting
        try:
            archiver = Archiver(replace(self._conf, topic=name))
        except BrokerUnavailableError:
            return  # the next broker check reports this
        query = archiver.start(self._spark)
        self._running[name] = _Running(archiver, query)
        self._report("started", {"topic": name, "records": archiver.totals.records})

    def _check_query(self, name: str) -> None:
        """Report the progress of a query, and handle its end."""
        one = self._running[name]
        active = one.query.isActive
        for progress in _new_progress(one):
            self._report("batch", {"topic": name, **progress})
        if active:
            return
        del self._running[name]
        self._add_counts(name, one.archiver.counts)
        failure = one.query.exception()
        if failure is None:
            self._finished.add(name)
        elif isinstance(one.archiver.error, LakeError):
            raise one.archiver.error
        elif isinstance(one.archiver.error, BrokerUnavailableError) or _is_transient(str(failure)):
            self._report("again", {"topic": name})
            self._stop.wait(_RETRY_BACKOFF_SECONDS)
            self._wait_for_broker()
        else:
            raise LakeError(_failure_message(name, str(failure), self._conf))

    def _add_counts(self, name: str, counts: Counts) -> None:
        self._done[name] = self._done.get(name, Counts()) + counts

    def _stop_all_queries(self) -> None:
        for name, one in self._running.items():
            one.query.stop()
            one.archiver.wait()
            self._add_counts(name, one.archiver.counts)


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _matching(pattern: str, names: list[str]) -> list[str]:
    return fnmatch.filter(names, pattern) if _is_pattern(pattern) else [pattern]


def _new_progress(one: _Running) -> Iterator[dict[str, object]]:
    """Yield the batches of the query's progress that were not reported yet."""
    for progress in one.query.recentProgress:
        batch = int(progress["batchId"])
        if batch <= one.reported_batch or not progress["numInputRows"]:
            continue
        one.reported_batch = batch
        seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        counts = one.archiver.batches.get(batch, Counts())
        yield {
            "batch": batch,
            "records": counts.records,
            "poison": counts.poison,
            "rows_per_second": round((counts.records + counts.poison) / max(seconds, 0.001)),
            "lag": _lag(progress["sources"][0]),
        }


def _lag(source: dict[str, Any]) -> int | None:
    """Return how many offsets a query is behind one source, or None if the source does not say.

    Unlike in `kbroker.spark.lag`, a partition whose end decreased counts as 0.
    """
    try:
        end, latest = (
            json.loads(source[name]) if isinstance(source[name], str) else source[name]
            for name in ("endOffset", "latestOffset")
        )
        return sum(
            max(0, int(offset) - int(end[topic].get(partition, 0)))
            for topic, partitions in latest.items()
            for partition, offset in partitions.items()
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _is_transient(failure: str) -> bool:
    """Return True if a query ended because brokers were unavailable."""
    return any(sign in failure for sign in _TRANSIENT)


def _failure_message(topic: str, failure: str, conf: Conf) -> str:
    """Return the cause of a failed query and the next action."""
    if "data may have been lost" in failure or "was changed from" in failure:
        return (
            f"records of {topic} were deleted before they could be archived (retention, or "
            "`kbroker topic trim`). With --allow-loss the archiver continues at the topic's current "
            f"start; the records in {conf.lake} are kept"
        )
    if "SchemaError: " in failure:
        return f"{topic}: {failure.partition('SchemaError: ')[2].splitlines()[0]}"
    lines = [line.strip() for line in failure.splitlines() if line.strip()]
    cause = next((line for line in reversed(lines) if line.startswith("Caused by:")), lines[0])
    return f"{topic}: {cause}"


def select_topics(lake: Path, topics: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the selected topics of a lake, by default all.

    Args:
        lake: Directory of the lake, for messages.
        topics: Selected topics; empty for all.
        known: Topics of the lake.

    Returns:
        The topics.

    Raises:
        LakeError: The lake does not contain a selected topic.
    """
    missing = sorted(set(topics) - set(known))
    if missing or not known:
        what = f"no topic {missing[0]}" if missing else "no topics"
        raise LakeError(f"{lake} has {what} (topics: {', '.join(known) or 'none'})")
    return list(topics) or list(known)
