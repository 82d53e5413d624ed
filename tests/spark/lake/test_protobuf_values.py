"""Protobuf messages become columns, with schemas of kbroker's registry that change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from kbroker.client.schema_registry import header_of
from kbroker.pipelines.lake.archiver import Archiver
from kbroker.pipelines.lake.commits import Counts, LakeError
from kbroker.spark.protobuf import Encoder
from kbroker.testing import LocalBroker

from .lakes import archive, conf_of, payloads, produce, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = """
syntax = "proto3";
message Order { int32 id = 1; string who = 2; }
"""
SECOND = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
message Order {
  int32 id = 1;
  string who = 2;
  repeated Line lines = 3;
  google.protobuf.Timestamp at = 4;
  google.protobuf.Duration took = 5;
}
message Line { uint64 count = 1; }
message Other { int32 id = 1; string text = 2; }
message List { List rest = 1; }
"""


def test_messages_with_schema_ids_use_registry(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    with LocalBroker(schema_registry=True) as serving:
        url = serving.schema_registry_url
        first = Encoder.registered(url, "t-value", FIRST)
        second, other, recursive = (
            Encoder.registered(url, "t-value", SECOND, name) for name in ("Order", "Other", "List")
        )
        at = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
        new = {"id": 2, "lines": [{"count": 2**64 - 1}], "at": at, "took": timedelta(seconds=1.5)}
        values = [
            first.encode({"id": 1, "who": "a"}),
            None,
            second.encode(new),
            other.encode({"id": 3, "text": "another message"}),
            recursive.encode({}),
            header_of(9) + b"\0",
            b"{}",
        ]
        broker.create_topic("t")
        produce(broker, "t", values)
        conf = conf_of(broker, tmp_path, "t", format="protobuf", schema=url)
        assert archive(spark, conf).totals == Counts(4, 3)
    kept = [*rows(tmp_path, "t")]
    assert [each["id"] for each in kept] == [1, None, 2, 3]
    assert (kept[0]["who"], kept[3]["text"]) == ("a", "another message")
    assert (kept[2]["at"], int(kept[2]["lines"][0]["count"])) == (at, 2**64 - 1)
    # microseconds, which Spark reads as an interval
    assert kept[2]["took"] == 1_500_000
    assert payloads(tmp_path, "t")[0] == {"id": 1, "who": "a"}
    reasons = pq.read_table(tmp_path / "_poison" / "t").column("reason").to_pylist()
    assert [each.partition(" (")[0] for each in reasons] == [
        "schema 2: message List is recursive; Spark has no equivalent type",
        f"{url} has no schema 9",
        "value of 2 bytes is too short for a schema ID header",
    ]


@pytest.mark.parametrize("schema", [None, "schemas"])
def test_protobuf_without_registry_is_rejected(
    broker: LocalBroker, tmp_path: Path, schema: str | None
) -> None:
    broker.create_topic("t")
    with pytest.raises(LakeError, match="--format protobuf needs --schema"):
        Archiver(conf_of(broker, tmp_path, "t", format="protobuf", schema=schema))
