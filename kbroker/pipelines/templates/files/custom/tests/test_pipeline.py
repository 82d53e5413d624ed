"""Tests of the transformation: one result per record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kbroker.testing import LocalBroker

Run = Callable[[], None]
Latest = Callable[[str], dict[str, str]]

pytestmark = pytest.mark.kbroker(topics={"source": 2, "target": 2})


def test_each_record_produces_one_result(kbroker: LocalBroker, run: Run, latest: Latest) -> None:
    kbroker.produce("source", "one", partition=0)
    run()
    kbroker.produce("source", "two", partition=1)
    run()
    assert latest("target") == {"source-0-0": "ONE", "source-1-0": "TWO"}


def test_repeated_batch_writes_same_results(
    kbroker: LocalBroker, run: Run, crash_after_writing: Run, latest: Latest
) -> None:
    kbroker.produce("source", "one", partition=0)
    crash_after_writing()
    run()
    assert len(kbroker.records("target")) == 2
    assert latest("target") == {"source-0-0": "ONE"}
