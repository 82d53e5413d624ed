"""Change capture example: rebuilt tables equal the database, even after processes were killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.pipelines.audit import check_topic
from kbroker.testing import LocalBroker

from .conftest import EXAMPLES
from .crash import forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, TRANSACTIONS = 300, 60


def kill_capture_in_third_transaction(path: Path, broker: LocalBroker) -> None:
    """Run the capture process, and kill it before the commit of its third round of changes."""
    commit = broker.fault("EndTxn").on_call(3).blackhole()
    command = [sys.executable, "-m", "changes.capture", "--database", str(path), "--round-size=100"]
    command += ["--bootstrap", broker.bootstrap_servers]
    with subprocess.Popen(
        command, cwd=EXAMPLES, env=os.environ | {"PYTHONWARNINGS": "ignore"}
    ) as capture:
        try:
            commit.wait(timeout=60)
        finally:
            capture.kill()


def changes_in(kafka: str) -> list[dict[str, Any]]:
    """Return the committed changes of all tables in Kafka, in the database's commit order."""
    import topics
    from changes import TABLES

    changes = [
        {"table": table.name, "key": record.key} | json.loads(record.value)
        for table in TABLES
        for record in topics.read(kafka, table.topic)
        if record.value is not None
    ]
    return sorted(changes, key=lambda change: int(change["sequence"]))


def test_rebuilt_tables_equal_database_after_kills(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    import program
    from changes import TABLES, capture, database, rebuild

    kafka, path = broker.bootstrap_servers, tmp_path / "flights.db"
    start = partial(rebuild.start, spark, kafka, tmp_path, batch_rows=10_000)
    capture.create_topics(kafka)
    database.make(path, ROWS)

    kill_capture_in_third_transaction(path, broker)
    assert len(changes_in(kafka)) == 200, (
        "two rounds of 100 changes are committed, the third is open"
    )
    query = start()
    program.drain([query])
    forget_last_commit(query, tmp_path / "checkpoint")
    database.change(path, seed=1, transactions=TRANSACTIONS)
    capture.capture(path, kafka)
    program.drain([start()])

    expected = database.tables(path)
    for table in TABLES:
        streamed = rebuild.kept_table(spark, tmp_path, table)
        assert rebuild.rows_by_key(streamed, table) == expected[table.name]
        computed = rebuild.table_now(spark, kafka, table)
        assert rebuild.rows_by_key(computed, table) == expected[table.name]

    for table in TABLES:
        check_topic(kafka, table.topic, unique="header:change")
    changes = changes_in(kafka)
    assert [change["sequence"] for change in changes] == list(range(1, len(changes) + 1))
    assert {change["operation"] for change in changes} == {"insert", "update", "delete"}
    rows: dict[tuple[str, bytes], Any] = {}
    for change in changes:
        name = (change["table"], change["key"])
        assert change["before"] == rows.get(name)
        rows[name] = change["after"]


def test_rolled_back_change_is_not_captured(tmp_path: Path) -> None:
    from changes import database

    path = tmp_path / "flights.db"
    database.make(path, rows=5)
    with database.connect(path) as opened:
        count = "SELECT count(*) FROM outbox"
        assert opened.execute(count).fetchone() == (15,)
        opened.execute("BEGIN")
        opened.execute("DELETE FROM planes")
        assert opened.execute(count).fetchone() == (20,)
        opened.execute("ROLLBACK")
        assert opened.execute(count).fetchone() == (15,)
