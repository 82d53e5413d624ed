"""Tests of the errors for a Spark that does not start."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from kbroker.spark import java
from kbroker.spark.connector import ConnectorError, Installed, NoConnectorError

# The attribute `session` of the package is the function.
session = importlib.import_module("kbroker.spark.session")


@pytest.mark.parametrize(
    ("jvm_output", "kind"),
    [
        ("unresolved dependency: org.apache.spark#spark-sql-kafka-0-10_2.13;4.3.0: not found",
         NoConnectorError),
        ("getSubject is not supported", ConnectorError),
        ("something else", ConnectorError),
    ],
)  # fmt: skip
def test_missing_connector_raises_its_own_error(
    jvm_output: str, kind: type[ConnectorError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "installed", lambda: Installed("4.3.0", Path("/spark"), "2.13"))
    monkeypatch.setattr(java, "default_java", lambda: java.Java(Path("/java"), 17))
    assert type(session._start_error(jvm_output, RuntimeError("JAVA_GATEWAY_EXITED"))) is kind
