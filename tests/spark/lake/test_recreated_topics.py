"""Recreated topics: their records never mix with those of the old topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from kbroker.pipelines.lake.archiver import Archiver
from kbroker.pipelines.lake.checking import check
from kbroker.pipelines.lake.commits import Counts, LakeError
from kbroker.pipelines.lake.settings import set_aside
from kbroker.testing import LocalBroker

from .lakes import archive, conf_of, payloads, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_recreated_topic_is_rejected_until_old_one_is_set_aside(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    produce(broker, "t", [{"a": 1}, {"a": 2}, b"bad"])
    archive(spark, conf_of(broker, tmp_path, "t"))
    broker.delete_topic("t")
    broker.create_topic("t")
    produce(broker, "t", [{"a": 3}, {"a": 4}, {"a": 5}, {"a": 6}])

    with pytest.raises(LakeError, match=r"was created again .* set-aside"):
        Archiver(conf_of(broker, tmp_path, "t"))
    aside = set_aside(tmp_path, "t")
    archiver = archive(spark, conf_of(broker, tmp_path, "t"))

    assert archiver.totals == Counts(4, 0)
    assert payloads(tmp_path, "t") == [{"a": 3}, {"a": 4}, {"a": 5}, {"a": 6}]
    assert payloads(tmp_path, aside.name) == [{"a": 1}, {"a": 2}]
    assert (tmp_path / "_poison" / aside.name).is_dir()
    assert not check(tmp_path, aside.name).problems


def test_topic_recreated_during_run_ends_it_before_commit(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    produce(broker, "t", [{"a": 1}])
    archiver = Archiver(conf_of(broker, tmp_path, "t"))
    broker.delete_topic("t")
    broker.create_topic("t")
    produce(broker, "t", [{"a": 2}])

    with pytest.raises(StreamingQueryException):
        archiver.start(spark).awaitTermination()

    assert isinstance(archiver.error, LakeError)
    assert "was created again" in str(archiver.error)
    assert archiver.totals == Counts()
    assert list(tmp_path.glob("t/**/*.parquet")) == []
