"""A pipeline of many records through a broker and two Spark jobs, which are killed repeatedly.

No record may be lost, and readers of the lake may see no record twice. The topic of enriched orders
is written at least once: it may contain an order again after a kill of Spark. The lake then has the
order as often as the topic.

10,000,000 records and 20 kills take about a quarter of an hour on two free cores. Most of it is
Spark's work; each start of Spark takes ten seconds, and the final audits three or four minutes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.pipelines.audit import AuditError
from kbroker.pipelines.lake.layout import file_name
from tests.commands import invoke

from .jobs import Checkpoint
from .orders import ENRICHED, ORDERS, order
from .run import BROKER, ENRICH, LAKE, Run, plan


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A run with `request.param` orders."""
    made = Run(tmp_path, request.param)
    yield made
    made.close()


def test_pipeline_survives_all_kills(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    count = request.config.getoption("--long-records")
    kills = request.config.getoption("--long-kills")
    seed = request.config.getoption("--seed")
    print(f"\nseed {seed}")
    run = Run(tmp_path, count)
    try:
        began = time.monotonic()
        run.run(plan(seed, kills))
        ran = time.monotonic()
        figures = run.verify()
    finally:
        run.close()
    assert run.hits[BROKER] == kills
    assert run.hits[ENRICH] + run.hits[LAKE] == kills
    print(
        f"\nfigures: {figures}; kills with work in flight: broker {run.hits[BROKER]}, "
        f"enrich {run.hits[ENRICH]}, lake {run.hits[LAKE]} (not counted: {run.misses.total()}); "
        f"seed {seed}; {ran - began:.0f} s, and {time.monotonic() - ran:.0f} s of audit"
    )


def keep_rows(path: Path, rows: slice) -> None:
    """Rewrite a file with some of its rows."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.take(list(range(len(table)))[rows]), path)


@pytest.mark.parametrize("run", [2000], indirect=True)
def test_lost_and_duplicate_records_are_reported(run: Run) -> None:
    """Self-test of the checks: damage is planted after an intact run."""
    import pyarrow.parquet as pq

    run.run([])
    assert "2,000 orders, 0 of them enriched again" in run.verify()

    path = max(run.lake.glob(f"{ENRICHED}/*/*/*.parquet"), key=lambda one: one.stat().st_size)
    kept = path.read_bytes()
    middle = pq.read_metadata(path).num_rows // 2
    keep_rows(path, slice(None, None, 2))
    with pytest.raises(AuditError, match=f"{middle:,} missing"):
        run.verify()
    path.write_bytes(kept)
    copy = path.with_name(file_name(0, 0, 99_999))
    shutil.copy(path, copy)
    with pytest.raises(AuditError, match="doubled"):
        run.verify()
    copy.unlink()
    run.verify()

    def produce(topic: str, number: int) -> None:
        key, value = order(number)
        line = json.dumps({"key": key.decode(), "value": value.decode()})
        invoke("topic", "produce", topic, "--json", "-q", "-b", run.bootstrap, stdin=line)

    # in the topic again, but not in the lake
    produce(ENRICHED, 7)
    with pytest.raises(AuditError, match="1 missing"):
        run.verify()
    produce(ORDERS, 2000)
    run.count += 1
    with pytest.raises(AuditError, match=r"1 missing\nmissing: orders-"):  # never enriched
        run.verify()
    produce(ORDERS, 7)
    with pytest.raises(AuditError, match="1 duplicate"):
        run.verify()


def test_checkpoint_reports_planned_and_completed_batches(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert (checkpoint.planned(), checkpoint.done(), checkpoint.read()) == (-1, -1, 0)
    for name, numbers in (("offsets", (0, 1, 10)), ("commits", (0, 1))):
        (tmp_path / name).mkdir()
        for number in numbers:
            offsets = json.dumps({"t": {"0": number, "1": 5}})
            (tmp_path / name / str(number)).write_text(f"v1\n{{}}\n{offsets}")
            (tmp_path / name / f".{number}.crc").touch()
    assert (checkpoint.planned(), checkpoint.done(), checkpoint.read()) == (10, 1, 6)
    assert checkpoint.is_at_work()
    (tmp_path / "commits" / "10").touch()
    assert not checkpoint.is_at_work()


def test_plan_kills_broker_and_spark_equally() -> None:
    planned_kills = plan(5, 10)
    assert plan(5, 10) == planned_kills == sorted(planned_kills)
    assert plan(6, 10) != planned_kills
    assert [
        sum(one.victim == name for one in planned_kills) for name in (BROKER, ENRICH, LAKE)
    ] == [
        10,
        5,
        5,
    ]
