"""Known failures in logs: each is reported once, specific ones before unspecific ones."""

from __future__ import annotations

import re

from kbroker.spark.failures import FAILURES, explain

LOG = """\
26/11/21 23:00:19 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
pyspark.errors.AnalysisException: Failed to find data source: kafka. Please deploy
again: Failed to find data source: kafka. Please deploy
[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.
"""


def test_each_failure_is_reported_at_its_first_line() -> None:
    found = [(each.failure.name, each.number) for each in explain(LOG)]
    assert found == [("native Hadoop", 1), ("no connector", 2)]
    assert explain(LOG.splitlines(keepends=True))[1].line.startswith("pyspark.errors")


def test_unspecific_failure_is_reported_only_alone() -> None:
    lines = LOG.splitlines()
    assert [each.failure.name for each in explain([lines[0], lines[3]])] == [
        "native Hadoop", "no gateway",
    ]  # fmt: skip


def test_harmless_log_has_no_findings() -> None:
    assert explain("all is well") == []
    assert explain("") == []


def test_each_failure_has_unique_name_and_action() -> None:
    assert len({failure.name for failure in FAILURES}) == len(FAILURES)
    for failure in FAILURES:
        re.compile(failure.pattern)
        assert failure.cause.endswith(".")
        assert failure.action.endswith((".", "topic NAME`)"))
