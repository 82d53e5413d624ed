"""Jar names and the choice of versions."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from kbroker.spark import jars
from kbroker.spark.connector import ConnectorError, Installed
from kbroker.spark.jars import Jar

SPARK = Installed("4.2.0", Path("/spark"), "2.13")
RIGHT = [
    "spark-sql-kafka-0-10_2.13-4.2.0.jar",
    "spark-token-provider-kafka-0-10_2.13-4.2.0.jar",
    "kafka-clients-3.9.2.jar",
    "commons-pool2-2.13.1.jar",
]


@pytest.mark.parametrize(
    ("name", "jar"),
    [
        (RIGHT[0], Jar("spark-sql-kafka-0-10", "2.13", "4.2.0")),
        ("org.apache.spark_" + RIGHT[1], Jar("spark-token-provider-kafka-0-10", "2.13", "4.2.0")),
        ("kafka-clients-3.9.2.jar", Jar("kafka-clients", "", "3.9.2")),
        ("org.apache.commons_commons-pool2-2.12.0.jar", Jar("commons-pool2", "", "2.12.0")),
        ("commons-pool-1.5.4.jar", None),
        ("spark-sql_2.13-4.2.0.jar", None),
        ("kafka-clients.txt", None),
    ],
)
def test_jar_names_are_parsed(name: str, jar: Jar | None) -> None:
    assert jars.parse(name) == jar


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (RIGHT, []),
        ([*RIGHT, "lz4-java-1.8.0.jar"], []),
        (RIGHT[:3], ["commons-pool2 is missing"]),
        ([*RIGHT, "kafka-clients-3.9.0.jar"], ["kafka-clients is present 2 times (3.9.0, 3.9.2)"]),
        (
            ["spark-sql-kafka-0-10_2.12-4.2.0.jar", *RIGHT[1:]],
            ["spark-sql-kafka-0-10 is for Scala 2.12, PySpark has 2.13"],
        ),
        (
            ["spark-sql-kafka-0-10_2.13-4.0.0.jar", *RIGHT[1:]],
            ["spark-sql-kafka-0-10 is for Spark 4.0.0, PySpark is 4.2.0"],
        ),
    ],
)
def test_problems_of_jar_sets_are_found(names: list[str], found: list[str]) -> None:
    assert [
        problem.text for problem in jars.problems(names, SPARK) if not problem.harmless
    ] == found


def test_connector_of_same_minor_version_is_harmless() -> None:
    (problem,) = jars.problems(["spark-sql-kafka-0-10_2.13-4.2.1.jar", *RIGHT[1:]], SPARK)
    assert problem.harmless


def test_older_token_provider_is_harmless() -> None:
    names = [RIGHT[0], "spark-token-provider-kafka-0-10_2.13-4.0.0.jar", *RIGHT[2:]]
    (problem,) = jars.problems(names, SPARK)
    assert problem.harmless
    (problem,) = jars.problems([name.replace("-4.0.0", "-3.5.1") for name in names], SPARK)
    assert not problem.harmless


@pytest.mark.parametrize(
    ("version", "tried"),
    [
        ("4.2.1", ["4.2.1", "4.2.0", "4.1.0", "4.0.0"]),
        ("4.2.0", ["4.2.0", "4.1.0", "4.0.0"]),
        ("4.0.0", ["4.0.0"]),
        ("4.3.0.dev1", ["4.3.0.dev1", "4.3.0", "4.2.0", "4.1.0", "4.0.0"]),
    ],
)
def test_candidate_versions_are_ordered(version: str, tried: list[str]) -> None:
    assert jars.candidates(version) == tried


class Registry(jars.Fetcher):
    """A registry with some artifacts; each connector comes with the Kafka client."""

    def __init__(self, *has: str) -> None:
        self.has = has

    def __call__(self, artifact: str, version: str, directory: Path) -> None:
        if f"{artifact}-{version}" not in self.has:
            raise jars.NotInRepositoryError
        (directory / f"{artifact}-{version}.jar").touch()
        if artifact.startswith(jars.CONNECTOR):
            for name in (*RIGHT[2:], "spark-tags_2.13-4.2.0.jar"):
                (directory / name).touch()


def gathered(registry: Registry, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(jars, "fetcher", lambda pyspark: registry)
    return jars.gather(SPARK, directory)


CONNECTOR, PROVIDER = "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"


def test_newest_available_version_is_downloaded_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(f"{CONNECTOR}-4.2.0", f"{PROVIDER}-4.0.0")
    (note,) = gathered(registry, tmp_path / "jars", monkeypatch)
    assert "downloaded 4.0.0" in note
    assert sorted(path.name for path in (tmp_path / "jars").iterdir()) == sorted(
        [RIGHT[0], f"{PROVIDER}-4.0.0.jar", *RIGHT[2:]]
    )
    (note,) = gathered(Registry(), tmp_path / "jars", monkeypatch)
    assert note.endswith("already contains the jars")


def test_connector_of_other_minor_version_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(f"{CONNECTOR}-4.1.0", f"{PROVIDER}-4.0.0")
    with pytest.raises(ConnectorError, match=r"pip install 'pyspark==4.1.0'"):
        gathered(registry, tmp_path, monkeypatch)
    assert list(tmp_path.iterdir()) == []


def test_repository_without_connector_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectorError, match=r"no spark-sql-kafka-0-10_2.13 of 4.2.0, 4.1.0, 4.0"):
        gathered(Registry(), tmp_path, monkeypatch)


def test_directory_with_incompatible_jars_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kafka-clients-3.4.0.jar").touch()
    with pytest.raises(ConnectorError, match="name an empty directory"):
        gathered(Registry(), tmp_path, monkeypatch)


def test_maven_and_ivy_projects_exclude_jars_of_pyspark() -> None:
    connector = ElementTree.fromstring(jars.pom(CONNECTOR, "4.2.0"))
    excluded = {each.text for each in connector.iterfind(".//{*}exclusion/{*}groupId")}
    assert {"org.apache.spark", "org.apache.hadoop"} < excluded
    assert not excluded & {"org.apache.kafka", "org.apache.commons"}
    provider = ElementTree.fromstring(jars.pom(PROVIDER, "4.0.0"))
    assert [each.text for each in provider.iterfind(".//{*}exclusion/*")] == ["*", "*"]
    excludes = [
        each.attrib
        for each in ElementTree.fromstring(jars.ivy_module(CONNECTOR, "4.2.0")).iter("exclude")
    ]
    assert {"org": "org.apache.spark", "module": PROVIDER} in excludes
    assert {"org": "org.apache.hadoop"} in excludes
    assert not list(ElementTree.fromstring(jars.ivy_module(PROVIDER, "4.0.0")).iter("exclude"))
