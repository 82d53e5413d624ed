"""Tests of the log lines of usual events: one line each, for any number of partitions."""

from __future__ import annotations

import logging
import re
import time

import pytest

from kbroker.coordinator import some_of
from kbroker.testing import LocalBroker

from ..testing.test_clock import member

# More partitions than the controller writes at once.
PARTITIONS = 130
SECONDS = 60


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kbroker")


def lines_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[tuple[str, str]]:
    """Return level and text of the log lines of a module."""
    records = [each for each in caplog.records if each.name == logger]
    return [(each.levelname, each.getMessage()) for each in records]


def wait_for_controller_lines(caplog: pytest.LogCaptureFixture, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while len(lines_of(caplog, "kbroker.cluster.controller")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_rebalance_logs_one_line_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    with LocalBroker(topics={"orders": 2}) as broker, member(broker):
        broker.wait_for_group("g", members=1, timeout=SECONDS)
        with member(broker):
            broker.wait_for_group("g", members=2, timeout=SECONDS)
            texts = [text for _, text in lines_of(caplog, "kbroker.coordinator_runtime.groups")]
    assert len(texts) == 2
    assert re.fullmatch(
        r"group g rebalanced because member [\w-]*-[0-9a-f]{8} joined; leader [\w-]*-[0-9a-f]{8} "
        r"assigned partitions to 2 members \(Stable, generation 2\)",
        texts[1],
    )
    assert "assigned partitions to 1 member (" in texts[0]


def test_crashed_node_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"default.replication.factor": 3}
    with LocalBroker(nodes=3, config=settings, topics={"t": PARTITIONS}) as broker:
        (led,) = [node.leads for node in broker.nodes() if node.id == 3]
        caplog.clear()
        broker.crash_node(3)
        wait_for_controller_lines(caplog, 1)
        (line,) = lines_of(caplog, "kbroker.cluster.controller")
        assert lines_of(caplog, "kbroker.replication.fetcher") == []
    assert line[0] == "INFO"
    assert line[1].startswith(f"node 3 is down: {led} partitions have another leader now (node 1:")


def test_requested_stop_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """A requested stop is no error even if no other node has the records."""
    with LocalBroker(nodes=2, topics={"t": PARTITIONS}) as broker:
        (led,) = [node.leads for node in broker.nodes() if node.id == 2]
        caplog.clear()
        broker.stop_node(2)
        wait_for_controller_lines(caplog, 1)
        text = f"node 2 was stopped: {led} partitions have no leader until a node that was in sync"
        ((level, line),) = lines_of(caplog, "kbroker.cluster.controller")
        assert line.startswith(text)
        assert level == "WARNING"
        broker.start_node(2)
    assert "ERROR" not in {each.levelname for each in caplog.records}


def test_log_line_names_few_of_thousands_of_partitions() -> None:
    names = [f"t{number}" for number in range(4320)]
    assert some_of(names) == "t0, t1, t2, t3, t4, t5, t6, t7 and 4,312 more"
    assert some_of(names[:2]) == "t0, t1"
