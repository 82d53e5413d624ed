"""The source of `kbroker lake archive` if Spark's connector cannot be downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker import spark
from kbroker.cli.lake import _EventPrinter, _schema, _session_with
from kbroker.cli.target import REGISTRY, REGISTRY_LOGIN
from kbroker.spark import connector
from kbroker.spark.connector import ConnectorError, Installed, NoConnectorError


class Sessions:
    """Fake of `session`; with an `error`, sessions with the connector fail."""

    def __init__(self, error: ConnectorError | None = None) -> None:
        self.error = error
        self.made: list[bool] = []

    def __call__(self, name: str, *, connector: bool = True, **settings: Any) -> object:
        if connector and self.error is not None:
            raise self.error
        self.made.append(connector)
        return object()


def source(
    wanted: str, sessions: Sessions, monkeypatch: pytest.MonkeyPatch, version: str = "4.2.1"
) -> str:
    monkeypatch.setattr(spark, "session", sessions)
    monkeypatch.setattr(connector, "installed", lambda: Installed(version, Path("/spark"), "2.13"))
    return _session_with(wanted, {}, _EventPrinter(as_json=False))[1]


def test_archive_uses_available_connector(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = Sessions()
    assert [source(each, sessions, monkeypatch) for each in ("auto", "kafka", "kbroker")] == [
        "kafka", "kafka", "kbroker",
    ]  # fmt: skip
    assert sessions.made == [True, True, False]
    assert capsys.readouterr().out == ""


def test_archive_without_connector_falls_back_to_kbroker_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = Sessions(NoConnectorError("unresolved"))
    assert source("auto", sessions, monkeypatch) == "kbroker"
    assert sessions.made == [False]
    (line,) = capsys.readouterr().out.splitlines()
    assert "cannot download org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.1" in line
    assert line.endswith("archiving with --source kbroker, which needs no jar")


@pytest.mark.parametrize(
    ("wanted", "version", "error"),
    [
        ("kafka", "4.2.1", NoConnectorError("it was asked for")),
        ("auto", "4.1.0", NoConnectorError("its batches would have no limit")),
        ("auto", "4.2.1", ConnectorError("there is no Java")),
    ],
)
def test_archive_without_fallback_raises_connector_error(
    wanted: str, version: str, error: ConnectorError, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectorError, match=str(error)):
        source(wanted, Sessions(error), monkeypatch, version)


URL, LOGIN = "https://registry:8081/x", "alice:s/e:c@"


@pytest.mark.parametrize(
    ("given", "settings", "found"),
    [
        (None, {}, None),
        ("directory", {REGISTRY_LOGIN: LOGIN}, "directory"),
        (None, {REGISTRY: URL}, URL),
        (URL, {REGISTRY: "http://other"}, URL),
        (
            None,
            {REGISTRY: URL, REGISTRY_LOGIN: LOGIN},
            "https://alice:s%2Fe%3Ac%40@registry:8081/x",
        ),
        ("http://bob:x@registry", {REGISTRY_LOGIN: LOGIN}, "http://bob:x@registry"),
    ],
)
def test_archive_reads_registry_and_credentials_from_profile(
    given: str | None, settings: dict[str, str], found: str | None
) -> None:
    assert _schema(given, "avro", settings) == _schema(given, "protobuf", settings) == found
    assert _schema(given, "json", settings) == given
