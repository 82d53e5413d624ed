"""Archive topics until they are done or somebody says stop, and say how it goes.

One query for each topic. A query that ends because no broker answers is started again when one does;
its checkpoint and the lake's journal say where to go on.
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
from .brokers import BrokerAwayError, Brokers
from .commits import Counts, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_LOOK_SECONDS = 0.5
_ASK_BROKER_SECONDS = 5.0
_FIND_TOPICS_SECONDS = 30.0
_RETRY_BACKOFF_SECONDS = 1.0
_PASSING = (
    "TimeoutException",
    "Cannot fetch record",
    "DisconnectException",
    "NotLeaderOrFollower",
    "LeaderNotAvailable",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
)
"""What Java and C clients say when a broker is away for a while."""

Tell = Callable[[str, dict[str, object]], None]
"""Gets each event: its name and what belongs to it."""


@dataclass
class _Running:
    """A topic with its query."""

    archiver: Archiver
    query: StreamingQuery
    told_batch: int = -1


class Runner:
    """Archives topics with one Spark session."""

    def __init__(
        self,
        make_session: Callable[[], tuple[SparkSession, str]],
        conf: Conf,
        topics: Sequence[str],
        tell: Tell,
    ) -> None:
        """`conf` says all but the topic; `topics` are names, or patterns with ``*`` and ``?``.

        The session, with the name of the source that it has, is made when a broker answers and has
        the topics.
        """
        self._make_session = make_session
        self._spark: SparkSession | None = None
        self._conf, self._topics, self._tell = conf, topics, tell
        self._brokers = Brokers(conf.bootstrap, conf.options)
        self._running: dict[str, _Running] = {}
        self._done: dict[str, Counts] = {}
        self._over: set[str] = set()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Let `run` end soon; can be called from a signal handler."""
        self._stop.set()

    def run(self) -> dict[str, Counts]:
        """Archive; returns what each topic has brought.

        Raises:
            LakeError: a topic cannot be archived; says what helps.
        """
        try:
            self._archive_all()
        except LakeError:
            raise
        except Exception:
            # The signal to stop has ended the JVM too: what fails without it is no news.
            if not self._stop.is_set():
                raise
        return self._done

    def _archive_all(self) -> None:
        try:
            if self._conf.once:
                for name in self._find_topics():
                    self._archive_one(name)
            else:
                self._archive_on()
        finally:
            self._end_all()

    def _archive_one(self, name: str) -> None:
        while not self._stop.is_set() and name not in self._over:
            self._start(name)
            while name in self._running and not self._stop.wait(_LOOK_SECONDS):
                self._look_at(name)

    def _archive_on(self) -> None:
        find_at = ask_at = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= find_at:
                found = self._find_topics()
                for name in found:
                    if name not in self._running:
                        self._start(name)
                started = self._running.keys() >= set(found)
                find_at = now + (_FIND_TOPICS_SECONDS if started else _RETRY_BACKOFF_SECONDS)
            if now >= ask_at:
                self._wait_for_broker()
                ask_at = time.monotonic() + _ASK_BROKER_SECONDS
            for name in list(self._running):
                self._look_at(name)
                if name not in self._running:
                    find_at = 0.0
            self._stop.wait(_LOOK_SECONDS)

    def _find_topics(self) -> list[str]:
        """The topics that are asked for. Waits for a broker."""
        there = self._wait_for_broker()
        if self._stop.is_set():
            return []
        found = {one for pattern in self._topics for one in _matching(pattern, there)}
        missing = [one for one in self._topics if not _is_pattern(one) and one not in there]
        if missing:
            raise LakeError(
                f"there is no topic {missing[0]} on {self._conf.bootstrap}: create it first "
                f"(kbroker topic create {missing[0]})"
            )
        if not found and self._conf.once:
            raise LakeError(f"no topic on {self._conf.bootstrap} is called {self._topics[0]}")
        return sorted(found)

    def _wait_for_broker(self) -> list[str]:
        """The topics there are, as soon as a broker says so; tells when it has to wait."""
        began = time.monotonic()
        waiting = False
        while not self._stop.is_set():
            try:
                names = self._brokers.names()
            except BrokerAwayError as error:
                if not waiting:
                    self._tell("waiting", {"why": str(error)})
                waiting = True
                self._stop.wait(_LOOK_SECONDS)
                continue
            if waiting:
                self._tell("back", {"seconds": round(time.monotonic() - began, 1)})
            return names
        return []

    def _start(self, name: str) -> None:
        if self._spark is None:
            self._spark, source = self._make_session()
            self._conf = replace(self._conf, source=source)
        if self._stop.is_set():
            return  # while Spark started
        try:
            archiver = Archiver(replace(self._conf, topic=name))
        except BrokerAwayError:
            return  # whoever asks for the broker next tells
        query = archiver.start(self._spark)
        self._running[name] = _Running(archiver, query)
        self._tell("started", {"topic": name, "records": archiver.totals.records})

    def _look_at(self, name: str) -> None:
        """Tell what a query has done; when it has ended, find out why."""
        one = self._running[name]
        active = one.query.isActive
        for progress in _new_progress(one):
            self._tell("batch", {"topic": name, **progress})
        if active:
            return
        del self._running[name]
        self._add(name, one.archiver.counts)
        failure = one.query.exception()
        if failure is None:
            self._over.add(name)
        elif isinstance(one.archiver.error, LakeError):
            raise one.archiver.error
        elif isinstance(one.archiver.error, BrokerAwayError) or _is_passing(str(failure)):
            self._tell("again", {"topic": name})
            self._stop.wait(_RETRY_BACKOFF_SECONDS)
            self._wait_for_broker()
        else:
            raise LakeError(_explained(name, str(failure), self._conf))

    def _add(self, name: str, counts: Counts) -> None:
        self._done[name] = self._done.get(name, Counts()) + counts

    def _end_all(self) -> None:
        for name, one in self._running.items():
            one.query.stop()
            one.archiver.wait()
            self._add(name, one.archiver.counts)


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _matching(pattern: str, names: list[str]) -> list[str]:
    return fnmatch.filter(names, pattern) if _is_pattern(pattern) else [pattern]


def _new_progress(one: _Running) -> Iterator[dict[str, object]]:
    """What is new in the query's progress."""
    for progress in one.query.recentProgress:
        batch = int(progress["batchId"])
        if batch <= one.told_batch or not progress["numInputRows"]:
            continue
        one.told_batch = batch
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
    """How many offsets the topic is ahead; None when the source does not say."""
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


def _is_passing(failure: str) -> bool:
    """Whether a query ended because brokers were away."""
    return any(sign in failure for sign in _PASSING)


def _explained(topic: str, failure: str, conf: Conf) -> str:
    """What ended a query, and what to do."""
    if "data may have been lost" in failure or "was changed from" in failure:
        return (
            f"records of {topic} were deleted before they could be archived (retention, or "
            "`kbroker topic trim`). With --allow-loss the archiver goes on from where the topic "
            f"begins now; what {conf.lake} has stays as it is"
        )
    if "SchemaError: " in failure:
        return f"{topic}: {failure.partition('SchemaError: ')[2].splitlines()[0]}"
    lines = [line.strip() for line in failure.splitlines() if line.strip()]
    cause = next((line for line in reversed(lines) if line.startswith("Caused by:")), lines[0])
    return f"{topic}: {cause}"


def lakes_topics(lake: Path, topics: Sequence[str], known: Sequence[str]) -> list[str]:
    """The topics of a lake that are asked for, or all.

    Raises:
        LakeError: the lake has none of that name.
    """
    missing = sorted(set(topics) - set(known))
    if missing or not known:
        what = f"no topic {missing[0]}" if missing else "no topics"
        raise LakeError(f"{lake} has {what}: it has {', '.join(known) or 'nothing'}")
    return list(topics) or list(known)
