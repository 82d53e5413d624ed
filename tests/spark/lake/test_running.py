"""Interpretation of a query's progress and failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kbroker.cli.lake import lake
from kbroker.pipelines.lake import running
from kbroker.pipelines.lake.archiver import Conf
from kbroker.pipelines.lake.commits import LakeError


@pytest.mark.parametrize("form", [json.dumps, dict])
def test_lag_is_latest_offset_minus_end_offset(form: Any) -> None:
    source = {"endOffset": form({"t": {"0": 5}}), "latestOffset": form({"t": {"0": 7, "1": 3}})}
    assert running._lag(source) == 5
    assert running._lag({"endOffset": form({"t": {"0": 5}})}) is None


def test_failure_messages_name_cause_or_next_action() -> None:
    conf = Conf(Path("lake"), "t")
    lost = "[STREAM_FAILED] ... Some data may have been lost because they are not available"
    assert "--allow-loss" in running._failure_message("t", lost, conf)
    registry = "x\nkbroker.spark.avro.SchemaError: the registry r does not answer\nmore"
    assert running._failure_message("t", registry, conf) == "t: the registry r does not answer"
    java = "first\n\tat x\nCaused by: a.B: one\n\tat y\nCaused by: c.D: root\n\tat z"
    assert running._failure_message("t", java, conf) == "t: Caused by: c.D: root"


def test_unavailable_broker_is_transient() -> None:
    assert running._is_transient("x org.apache.kafka.common.errors.TimeoutException: y")
    assert not running._is_transient("java.lang.OutOfMemoryError")


def test_unknown_topic_error_lists_topics_of_lake() -> None:
    assert running.select_topics(Path("lake"), [], ["a", "b"]) == ["a", "b"]
    with pytest.raises(LakeError, match=r"lake has no topic c \(topics: a, b\)"):
        running.select_topics(Path("lake"), ["c"], ["a", "b"])


def test_invalid_arguments_end_with_error_message(tmp_path: Path) -> None:
    done = CliRunner().invoke(lake, ["check", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (
        1,
        f"kbroker: {tmp_path} has no topics (topics: none)\n",
    )
    done = CliRunner().invoke(lake, ["archive", str(tmp_path), "t", "--option", "x"])
    assert done.exit_code == 2
    assert "item 1 is not KEY=VALUE" in done.stderr
    done = CliRunner().invoke(lake, ["set-aside", str(tmp_path), "t"])
    assert (done.exit_code, done.stderr) == (
        1,
        f"kbroker: {tmp_path} does not contain the topic t\n",
    )
