"""Windows of every width equal those of plain Python, even after a crash."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.testing import LocalBroker

from .crash import forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED, COUNT = 7, 9_000


def test_windows_survive_crash(spark: SparkSession, broker: LocalBroker, tmp_path: Path) -> None:
    import program
    import topics
    from metrics import METRICS, WIDTHS, generate, pipeline, truth

    kafka = broker.bootstrap_servers
    topics.create(kafka, [METRICS])
    topics.create(kafka, WIDTHS, compacted=True)
    made = generate.readings(SEED, COUNT)
    records = list(generate.records(made))
    start = partial(pipeline.start, spark, kafka, tmp_path, batch_rows=COUNT)

    topics.send(kafka, METRICS, records[: COUNT // 2])
    queries = start()
    program.drain(queries)
    for query in queries:
        forget_last_commit(query, tmp_path / query.name)
    before = {topic: len(list(topics.read(kafka, topic))) for topic in WIDTHS}
    topics.send(kafka, METRICS, records[COUNT // 2 :])
    program.drain(start())

    expected = truth.windows(made)
    assert {topic: topics.latest(kafka, topic) for topic in WIDTHS} == expected
    assert all(len(windows) > 2 for windows in expected.values())
    for topic in WIDTHS:
        all_values = [(one.key, one.value) for one in topics.read(kafka, topic)]
        assert len(set(all_values)) < len(all_values), "the crash repeated nothing"
        assert before[topic] < len(all_values)
