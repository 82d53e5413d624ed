"""Spark with a broker that uses TLS, authentication and ACLs, by the connector and by kbroker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from kbroker.cli import main
from kbroker.pipelines.audit import check_lake, check_topic
from kbroker.pipelines.lake.archiver import Archiver, Conf
from kbroker.spark import commit_progress
from kbroker.testing import LocalBroker

from .source.topics import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USERS = {"spark": 'a "quoted" \\ pencil', "nobody": "pen"}
ACLS = {
    "spark": [
        *(f"{verb} topic *" for verb in ("READ", "WRITE", "DESCRIBE_CONFIGS")),
        "READ group *",
    ]
}


@pytest.fixture(scope="module")
def secure() -> Iterator[LocalBroker]:
    with LocalBroker(topics=["in"], tls=True, users=USERS, acls=ACLS) as running:
        for number in range(3):
            running.produce("in", json.dumps({"n": number}))
        yield running


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_batch_is_read_and_written_with_authentication(
    spark: SparkSession, secure: LocalBroker, kind: str, mechanism: str
) -> None:
    options = secure.client("spark", mechanism=mechanism).spark
    read = spark.read.format(kind).options(**options, subscribe="in").load()
    topic = f"{kind}-{mechanism}"
    secure.create_topic(topic)
    read.select("value").write.format(kind).options(**options, topic=topic).mode("append").save()
    assert [record.json for record in secure.records(topic)] == [{"n": each} for each in range(3)]


@pytest.mark.parametrize("kind", FORMATS)
def test_stream_is_read_written_and_committed_with_authentication(
    spark: SparkSession, secure: LocalBroker, kind: str, tmp_path: Path
) -> None:
    options = secure.client("spark").spark
    topic = f"{kind}-stream"
    secure.create_topic(topic)
    rows = spark.readStream.format(kind).options(**options, subscribe="in")
    query = (
        rows.option("startingOffsets", "earliest")
        .load()
        .select("value")
        .writeStream.format(kind)
        .options(**options, topic=topic, checkpointLocation=str(tmp_path))
    )
    running = query.start()
    commits = commit_progress(
        running, f"{kind}-progress", secure.bootstrap_servers, secure.client("spark").java
    )
    secure.wait_for(topic, count=3, timeout=60)
    secure.wait_for_commit(f"{kind}-progress", "in", 0, 3, timeout=60)
    running.stop()
    commits.stop()


def test_properties_without_prefix_and_truststore_file_are_accepted(
    spark: SparkSession, secure: LocalBroker, tmp_path: Path
) -> None:
    settings = secure.client("spark").java
    file = tmp_path / "ca.pem"
    file.write_text(settings.pop("ssl.truststore.certificates"))
    bootstrap = {"kafka.bootstrap.servers": settings.pop("bootstrap.servers")}
    chosen = bootstrap | settings | {"ssl.truststore.location": str(file)}
    assert spark.read.format("kbroker").options(**chosen, subscribe="in").load().count() == 3


@pytest.mark.parametrize("kind", FORMATS)
def test_missing_permission_is_reported(
    spark: SparkSession, secure: LocalBroker, kind: str
) -> None:
    options = secure.client("nobody").spark
    with pytest.raises(Exception, match=r"(?i)authoriz|this user may not see it"):
        spark.read.format(kind).options(**options, subscribe="in").load().count()


@pytest.mark.parametrize("kind", FORMATS)
def test_lake_is_archived_and_audited_with_authentication(
    spark: SparkSession, secure: LocalBroker, kind: str, tmp_path: Path
) -> None:
    client = secure.client("spark")
    conf = Conf(
        lake=tmp_path,
        topic="in",
        bootstrap=secure.bootstrap_servers,
        source=kind,
        options=client.spark,
        once=True,
    )
    archiver = Archiver(conf)
    archiver.start(spark).awaitTermination()
    archiver.wait()
    check_lake(secure.bootstrap_servers, "in", tmp_path, settings=client.java)
    assert check_topic(secure.bootstrap_servers, "in", settings=client.java)


def test_archive_command_uses_profile(
    spark: SparkSession, secure: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command uses the running session instead of its own."""
    settings = secure.client("spark").java
    settings["brokers"] = settings.pop("bootstrap.servers")
    lines = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items())
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f'current = "secure"\n[profiles.secure]\n{lines}\n')
    monkeypatch.setenv("KBROKER_PROFILES", str(profiles))
    monkeypatch.delenv("KBROKER_BOOTSTRAP", raising=False)
    monkeypatch.setattr("kbroker.spark.session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    lake = tmp_path / "lake"
    words = ["lake", "archive", str(lake), "in", "--once", "--source", "kbroker"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "archived 3 records of in in" in done.output
