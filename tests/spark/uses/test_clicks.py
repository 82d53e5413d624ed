"""Sessions and late clicks equal those of plain Python, even after a crash."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.testing import LocalBroker

from .crash import forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED, COUNT = 7, 6_000


def test_sessions_survive_crash(spark: SparkSession, broker: LocalBroker, tmp_path: Path) -> None:
    import program
    import topics
    from clicks import CLICKS, LATE, SESSIONS, generate, pipeline, truth

    kafka = broker.bootstrap_servers
    topics.create(kafka, [CLICKS])
    topics.create(kafka, [SESSIONS, LATE], compacted=True)
    stream = generate.clicks(SEED, COUNT)
    records = list(generate.records(stream))
    start = partial(pipeline.start, spark, kafka, tmp_path, batch_rows=COUNT)

    topics.send(kafka, CLICKS, records[: COUNT // 2])
    queries = start()
    program.drain(queries)
    for query in queries:
        forget_last_commit(query, tmp_path / query.name)
    topics.send(kafka, CLICKS, [*records[COUNT // 2 :], *generate.heartbeats(stream)])
    program.drain(start())

    assert topics.latest(kafka, SESSIONS) == truth.sessions(stream)
    assert topics.latest(kafka, LATE) == truth.late(stream)
    for topic in (SESSIONS, LATE):
        keys = [record.key for record in topics.read(kafka, topic)]
        assert len(keys) > len(set(keys)), "the crash repeated nothing"


def test_generated_clicks_cover_difficult_cases() -> None:
    """They include late clicks, clicks out of order, and gaps of exactly the session timeout."""
    from clicks import GAP_MINUTES, LATE_MINUTES, generate, truth

    stream = generate.clicks(SEED, COUNT)
    delays = {click.arrival_ms - click.time_ms - LATE_MINUTES * 60_000 for click in stream}
    assert {0, 1} <= delays
    times = [click.time_ms for click in stream if not truth.is_late(click)]
    assert times != sorted(times)
    of_visitor: dict[str, list[int]] = {}
    for click in sorted(stream, key=lambda click: click.time_ms):
        of_visitor.setdefault(click.visitor, []).append(click.time_ms)
    gaps = {after - before for times in of_visitor.values() for before, after in pairwise(times)}
    assert {GAP_MINUTES * 60_000 + more for more in (-1, 0, 1)} <= gaps
