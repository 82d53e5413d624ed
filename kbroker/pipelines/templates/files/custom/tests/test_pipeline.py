"""Each record makes one result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kbroker.testing import LocalBroker

Run = Callable[[], None]
Latest = Callable[[str], dict[str, str]]

pytestmark = pytest.mark.kbroker(topics={"source": 2, "target": 2})


def test_each_record_makes_one_result(kbroker: LocalBroker, run: Run, latest: Latest) -> None:
    kbroker.produce("source", "one", partition=0)
    run()
    kbroker.produce("source", "two", partition=1)
    run()
    assert latest("target") == {"source-0-0": "ONE", "source-1-0": "TWO"}


def test_a_batch_that_is_done_again_doubles_nothing(
    kbroker: LocalBroker, run: Run, die_after_writing: Run, latest: Latest
) -> None:
    kbroker.produce("source", "one", partition=0)
    die_after_writing()
    run()
    assert len(kbroker.records("target")) == 2
    assert latest("target") == {"source-0-0": "ONE"}
