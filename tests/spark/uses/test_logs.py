"""Error rates and bad entries equal those of plain Python, even after a crash."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.testing import LocalBroker

from .conftest import EXAMPLES
from .crash import forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED, COUNT = 7, 4_000
SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_error_rates_survive_crash(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    import program
    import topics
    from logs import BAD, ERRORS, LOGS, generate, pipeline, ship, truth
    from logs.__main__ import bad_entries

    kafka = broker.bootstrap_servers
    topics.create(kafka, [LOGS])
    topics.create(kafka, [BAD, ERRORS], compacted=True)
    made = generate.entries(SEED, COUNT)
    start = partial(pipeline.start, spark, kafka, tmp_path, batch_rows=COUNT)

    topics.send(kafka, LOGS, ship.records(generate.log_files(made[: COUNT // 2])))
    queries = start()
    program.drain(queries)
    for query in queries:
        forget_last_commit(query, tmp_path / query.name)
    topics.send(kafka, LOGS, ship.records(generate.log_files(made[COUNT // 2 :])))
    program.drain(start())

    assert topics.latest(kafka, ERRORS) == truth.errors(made)
    assert bad_entries(kafka) == truth.bad(made)
    assert {entry.reason for entry in made} == {None, *generate.REASONS}
    for topic in (BAD, ERRORS):
        records = [(one.key, one.value) for one in topics.read(kafka, topic)]
        assert len(set(records)) < len(records), "the crash repeated nothing"


def test_lake_search_finds_full_text(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    import duckdb
    import program
    import topics
    from logs import LOGS, generate, lake, ship

    kafka = broker.bootstrap_servers
    topics.create(kafka, [LOGS])
    made = generate.entries(SEED, 500)
    topics.send(kafka, LOGS, ship.records(generate.log_files(made)))
    program.drain([lake.archive(spark, kafka, tmp_path)])

    assert Counter(lake.search(tmp_path)) == Counter(entry.raw for entry in made)
    expected = Counter(entry.raw for entry in made if b"Read timed out" in entry.raw)
    assert expected
    assert Counter(lake.search(tmp_path, b"Read timed out")) == expected
    (query,) = SQL.findall((EXAMPLES / "logs" / "README.md").read_text())
    rows = duckdb.sql(query.replace("LAKE", str(tmp_path))).fetchall()
    assert Counter(value for _, value in rows) == expected


def test_shipper_keeps_multiline_entries_together() -> None:
    from logs import generate, ship

    made = generate.entries(SEED, COUNT)
    assert any(b"\n" in entry.raw for entry in made)
    shipped = [record.value for record in ship.records(generate.log_files(made))]
    assert Counter(shipped) == Counter(entry.raw for entry in made)
