"""Spark's own Kafka source and sink, in one session.

KBROKER_COMPAT_SPARK names the environment (spark-4.0 by default, spark-4.2 in soak tests).
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import ClientError, ClientProcess, ScriptProcess
from harness.places import COMPAT, WORK, environment_python
from harness.secure import secure_server
from harness.times import BASE_MS
from harness.traffic import TransactionalWriter

CLIENT = "spark"
ENVIRONMENT = os.environ.get("KBROKER_COMPAT_SPARK", "spark-4.0")
UNMATCHED = "No offset matched from request"
LOST = "Some data may have been lost"
UNKNOWN = "UnknownTopicOrPartition"


@pytest.fixture(scope="module")
def spark(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptProcess]:
    """Start one session for all tests of this file."""
    command = [str(COMPAT / "spark" / "driver.py"), str(WORK / ENVIRONMENT), broker.address]
    if (WORK / f"{ENVIRONMENT}-jars" / "lib").exists():
        command.append(str(WORK / f"{ENVIRONMENT}-jars" / "lib"))
    log = tmp_path_factory.mktemp("spark") / "spark.err"
    process = ScriptProcess("spark", [str(environment_python(ENVIRONMENT)), *command], log)
    yield process
    process.close()


@pytest.fixture
def kafka(workers: Callable[[str], ClientProcess]) -> ClientProcess:
    """Return another client, for changes outside Spark."""
    return workers("confluent-kafka")


def fill(kafka: ClientProcess, topic: str, values: range, partitions: int = 1) -> None:
    """Write one record per value, spread over the partitions, with timestamps 1 s apart."""
    records = [
        {"value": str(i), "partition": i % partitions, "timestamp": BASE_MS + 1000 * i}
        for i in values
    ]
    answers = kafka("produce", topic=topic, records=records)
    assert all("offset" in answer for answer in answers), answers


def values_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def flat(batches: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch]


def test_spark_version_is_that_of_environment(spark: ScriptProcess) -> None:
    assert spark("version").startswith(ENVIRONMENT.removeprefix("spark-"))


@pytest.mark.sample
def test_batch_query_writes_and_reads_headers(spark: ScriptProcess, kafka: ClientProcess) -> None:
    topic = "spark-batch"
    kafka.admin("create_topic", name=topic, partitions=3)
    rows = [
        {"key": "a", "value": "1", "headers": [["h", "1"], ["h", "2"], ["null", None]]},
        {"key": None, "value": "null key", "headers": []},
        {"key": "null value", "value": None},
        *({"key": f"k{i}", "value": "x" * 500, "partition": i % 3} for i in range(300)),
    ]
    spark("write", rows=[{"topic": topic, **row} for row in rows], options={})
    found = spark("read", options={"subscribe": topic, "includeHeaders": "true"})
    assert len(found) == len(rows)

    def seen(row: dict[str, Any]) -> tuple[Any, ...]:
        return (row["key"], row["value"], tuple(map(tuple, row.get("headers", []))))

    assert sorted(map(seen, found), key=repr) == sorted(map(seen, rows), key=repr)
    placed = {row["key"]: row["partition"] for row in found}
    assert all(placed[f"k{i}"] == i % 3 for i in range(300))
    again = kafka("read", topic=topic, count=len(rows))
    assert sorted(map(seen, again), key=repr) == sorted(map(seen, rows), key=repr)


def test_spark_reads_with_options_of_tls_dev_server(spark: ScriptProcess, tmp_path: Path) -> None:
    """The options that `kbroker serve --tls-dev` prints are used as they are."""
    seed = tmp_path / "seed.ndjson"
    seed.write_text('{"topic": "spark-secure", "value": "hello"}\n')
    with secure_server(tmp_path, "--seed", str(seed)) as server:
        script = tmp_path / "options.py"
        script.write_text(server.examples["spark"])
        options = run_path(str(script))["options"]
        rows = spark("read", options={**options, "subscribe": "spark-secure"})
    assert [row["value"] for row in rows] == ["hello"]


def test_sink_creates_missing_topic(spark: ScriptProcess, kafka: ClientProcess) -> None:
    spark("write", rows=[{"topic": "spark-made", "value": "x"}], options={})
    assert [row["value"] for row in kafka("read", topic="spark-made")] == ["x"]


def test_batch_query_reads_between_given_positions(
    spark: ScriptProcess, kafka: ClientProcess
) -> None:
    topic = "spark-positions"
    kafka.admin("create_topic", name=topic, partitions=2)
    fill(kafka, topic, range(100), partitions=2)

    def read(**options: str) -> list[int]:
        return values_of(spark("read", options={"subscribe": topic, **options}))

    at = str(BASE_MS + 40_000)
    assert read(startingTimestamp=at) == list(range(40, 100))
    assert read(endingTimestamp=at) == list(range(40))
    chosen = {"0": BASE_MS + 90_000, "1": BASE_MS + 50_000}
    by_partition = json.dumps({topic: chosen})
    wanted = sorted([*range(90, 100, 2), *range(51, 100, 2)])
    assert read(startingOffsetsByTimestamp=by_partition) == wanted
    offsets = {"0": -2, "1": 45}
    ends = {"0": 5, "1": -1}
    some = read(
        startingOffsets=json.dumps({topic: offsets}), endingOffsets=json.dumps({topic: ends})
    )
    assert some == sorted([*range(0, 10, 2), *range(91, 100, 2)])
    beyond = str(BASE_MS + 10_000_000)
    with pytest.raises(ClientError, match=UNMATCHED):
        read(startingTimestamp=beyond)
    assert read(startingTimestamp=beyond, startingOffsetsByTimestampStrategy="latest") == []
    cut = spark("partitions", options={"subscribe": topic, "minPartitions": "8"})
    assert cut >= 8


def test_stream_starts_at_timestamp(
    spark: ScriptProcess, kafka: ClientProcess, tmp_path: Path
) -> None:
    topic = "spark-timestamp"
    kafka.admin("create_topic", name=topic)
    fill(kafka, topic, range(50))
    options = {"subscribe": topic, "startingTimestamp": str(BASE_MS + 30_000)}
    batches = spark("stream", options=options, checkpoint=str(tmp_path / "checkpoint"))
    assert values_of(flat(batches)) == list(range(30, 50))


def test_pattern_subscription_includes_topic_added_between_runs(
    spark: ScriptProcess, kafka: ClientProcess, tmp_path: Path
) -> None:
    kafka.admin("create_topic", name="spark-pattern-one")
    fill(kafka, "spark-pattern-one", range(20))
    options = {"subscribePattern": "spark-pattern-.*", "startingOffsets": "earliest"}
    checkpoint = str(tmp_path / "checkpoint")
    first = flat(spark("stream", options=options, checkpoint=checkpoint))
    assert values_of(first) == list(range(20))
    kafka.admin("create_topic", name="spark-pattern-two", partitions=2)
    fill(kafka, "spark-pattern-two", range(20, 60), partitions=2)
    fill(kafka, "spark-pattern-one", range(60, 70))
    second = flat(spark("stream", options=options, checkpoint=checkpoint))
    assert values_of(second) == list(range(20, 70))
    assert {row["topic"] for row in second} == {"spark-pattern-one", "spark-pattern-two"}


def test_available_now_trigger_respects_offset_limit(
    spark: ScriptProcess, kafka: ClientProcess, tmp_path: Path
) -> None:
    topic = "spark-limit"
    kafka.admin("create_topic", name=topic, partitions=4)
    fill(kafka, topic, range(2_000), partitions=4)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "400",
        "includeHeaders": "true",
    }
    checkpoint = str(tmp_path / "checkpoint")
    batches = spark("stream", options=options, checkpoint=checkpoint)
    assert [len(batch) for batch in batches] == [400] * 5
    assert values_of(flat(batches)) == list(range(2_000))
    fill(kafka, topic, range(2_000, 2_100), partitions=4)
    more = spark("stream", options=options, checkpoint=checkpoint)
    assert values_of(flat(more)) == list(range(2_000, 2_100))


def test_deleted_records_fail_stream_unless_data_loss_is_allowed(
    spark: ScriptProcess, kafka: ClientProcess, tmp_path: Path
) -> None:
    topic, checkpoint = "spark-loss", str(tmp_path / "checkpoint")
    kafka.admin("create_topic", name=topic)
    fill(kafka, topic, range(100))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert len(flat(spark("stream", options=options, checkpoint=checkpoint))) == 100
    fill(kafka, topic, range(100, 300))
    assert kafka.admin("delete_records", topic=topic, partition=0, before=250) == 250
    with pytest.raises(ClientError, match=LOST):
        spark("stream", options=options, checkpoint=checkpoint)
    careless = {**options, "failOnDataLoss": "false"}
    rest = spark("stream", options=careless, checkpoint=checkpoint)
    assert values_of(flat(rest)) == list(range(250, 300))
    explicit = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 10}})}
    with pytest.raises(ClientError, match=LOST):
        spark("read", options=explicit)
    assert len(spark("read", options={**explicit, "failOnDataLoss": "false"})) == 50


def test_recreated_topic_fails_stream(
    spark: ScriptProcess, kafka: ClientProcess, tmp_path: Path
) -> None:
    topic, checkpoint = "spark-anew", str(tmp_path / "checkpoint")
    kafka.admin("create_topic", name=topic)
    fill(kafka, topic, range(100))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert len(flat(spark("stream", options=options, checkpoint=checkpoint))) == 100
    kafka.admin("delete_topic", name=topic)
    time.sleep(0.5)
    kafka.admin("create_topic", name=topic)
    time.sleep(0.5)
    fill(kafka, topic, range(10))
    with pytest.raises(ClientError, match="offset was changed from 100 to 10"):
        spark("stream", options=options, checkpoint=checkpoint)


def test_missing_topic_fails_queries(spark: ScriptProcess, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=UNKNOWN):
        spark("read", options={"subscribe": "spark-not-there"})
    with pytest.raises(ClientError, match=UNKNOWN):
        spark(
            "stream",
            options={"subscribe": "spark-not-there"},
            checkpoint=str(tmp_path / "checkpoint"),
        )


def test_delays_by_weather_are_aggregated(
    spark: ScriptProcess, kafka: ClientProcess, tmp_path: Path
) -> None:
    """Part of the demo: join, aggregate, keyed updates to a compacted topic."""
    flights, weather, sink = "spark-flights", "spark-weather", "spark-delays"
    kafka.admin("create_topic", name=flights, partitions=4)
    kafka.admin("create_topic", name=weather, partitions=2)
    kafka.admin("create_topic", name=sink, partitions=2, configs={"cleanup.policy": "compact"})
    dice = random.Random(2013)
    hours = [f"2013-01-{day:02d}T{hour:02d}" for day in (1, 2, 3) for hour in range(24)]
    rain = {
        (origin, hour): dice.random() < 0.3
        for origin in ("EWR", "JFK", "LGA")
        for hour in hours
        if dice.random() < 0.95
    }
    known = [
        {"key": origin, "value": json.dumps({"origin": origin, "hour": hour, "rain": wet})}
        for (origin, hour), wet in rain.items()
    ]
    kafka("produce", topic=weather, records=known)
    truth: dict[str, list[int]] = {}
    departures = []
    for hour in hours:
        for _ in range(40):
            carrier = dice.choice(["AA", "UA", "DL", "B6"])
            origin = dice.choice(["EWR", "JFK", "LGA"])
            one = {
                "carrier": carrier,
                "origin": origin,
                "hour": hour,
                "delay": dice.randint(-9, 99),
            }
            departures.append({"key": carrier, "value": json.dumps(one)})
            wet = {True: "true", False: "false", None: "?"}[rain.get((origin, hour))]
            cell = truth.setdefault(f"{hour[:10]}|{carrier}|{wet}", [0, 0])
            cell[0] += 1
            cell[1] += one["delay"]
    kafka("produce", topic=flights, records=departures)
    batches = spark(
        "delays",
        source=flights,
        weather=weather,
        sink=sink,
        checkpoint=str(tmp_path / "checkpoint"),
        limit=1_000,
    )
    assert batches >= 3
    held = sum(kafka("offsets", topic=sink, at="latest").values())
    last = {}
    for row in kafka("read", topic=sink, count=held):
        value = json.loads(row["value"])
        last[row["key"]] = [value["flights"], value["delay"]]
    assert last == truth


def test_stream_reads_only_committed_records(
    spark: ScriptProcess, kafka: ClientProcess, broker: Broker, tmp_path: Path
) -> None:
    """Aborted records are skipped, and an open transaction blocks later records."""
    topic, checkpoint = "spark-committed", str(tmp_path / "checkpoint")
    kafka.admin("create_topic", name=topic, partitions=2)
    writer = TransactionalWriter(broker.address, "spark-writer")
    for first in range(0, 400, 10):
        writer.begin(topic, range(first, first + 10))
        writer.end(commit=first % 40 != 30)
    kept = [number for number in range(400) if number // 10 % 4 != 3]
    late = TransactionalWriter(broker.address, "spark-late-writer")
    late.begin(topic, range(400, 410))
    writer.begin(topic, range(410, 420))
    writer.end(commit=True)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    everything = {**options, "kafka.isolation.level": "read_uncommitted"}
    assert values_of(spark("read", options=everything)) == list(range(420))
    assert values_of(spark("read", options=options)) == kept
    assert values_of(flat(spark("stream", options=options, checkpoint=checkpoint))) == kept
    late.end(commit=False)
    assert values_of(spark("read", options=options)) == [*kept, *range(410, 420)]
    rest = flat(spark("stream", options=options, checkpoint=checkpoint))
    assert values_of(rest) == list(range(410, 420))
