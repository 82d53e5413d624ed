"""Tests of the totals: correct sums, no lost or duplicate orders, and late orders."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from kbroker.testing import LocalBroker
from pyspark.sql import SparkSession

from my_pipeline.conf import Conf
from my_pipeline.pipeline import build
from my_pipeline.watch import Watch

Run = Callable[[], None]
Latest = Callable[[str], dict[str, str]]

pytestmark = pytest.mark.kbroker(topics={"orders": 2, "totals": 2, "rejected": 1})


def order(minute: str, customer: str = "ada", amount: float = 1.0) -> dict[str, Any]:
    return {"time": f"2026-03-01T{minute}:00Z", "customer": customer, "amount": amount}


def totals(latest: Latest) -> dict[str, tuple[int, float]]:
    """Return the latest totals by hour and customer, for example "10:00 ada".

    A total is (number of orders, sum of their amounts).
    """
    found = {key: json.loads(text) for key, text in latest("totals").items()}
    return {
        key.replace("2026-03-01T", "").replace(":00Z", ""): (each["orders"], each["amount"])
        for key, each in found.items()
    }


def test_late_orders_are_rejected_and_counted(
    spark: SparkSession, conf: Conf, kbroker: LocalBroker, latest: Latest, watch: Watch
) -> None:
    query = build(spark, conf)
    try:
        kbroker.produce("orders", order("10:10"), partition=0)
        kbroker.produce("orders", order("10:20", "bob"), partition=1)
        query.processAllAvailable()
        kbroker.produce("orders", order("12:05"), partition=0)
        kbroker.produce("orders", order("10:50"), partition=1)  # its window is still open
        query.processAllAvailable()
        kbroker.produce("orders", late := order("10:59"), partition=1)
        kbroker.produce("orders", order("11:30"), partition=1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert totals(latest) == {
        "10:00 ada": (2, 2.0),
        "10:00 bob": (1, 1.0),
        "11:00 ada": (1, 1.0),
        "12:00 ada": (1, 1.0),
    }
    (record,) = kbroker.records("rejected")
    assert (record.json, record.headers) == (late, (("reason", b"late"),))
    deadline = time.monotonic() + 30
    while not watch.dropped and time.monotonic() < deadline:
        time.sleep(0.1)  # Spark notifies listeners asynchronously
    assert watch.dropped == 1


def test_invalid_orders_are_rejected(kbroker: LocalBroker, run: Run, latest: Latest) -> None:
    ahead = order("10:00") | {"time": "2999-01-01T00:00:00Z"}
    kbroker.produce("orders", ahead, partition=0)
    kbroker.produce("orders", "nonsense", partition=0)
    kbroker.produce("orders", order("10:00"), partition=0)
    run()
    assert totals(latest) == {"10:00 ada": (1, 1.0)}
    found = {each.key: each.headers[0][1] for each in kbroker.records("rejected")}
    assert found == {b"orders-0-0": b"in the future", b"orders-0-1": b"invalid"}


def test_repeated_batch_changes_no_total(
    kbroker: LocalBroker, run: Run, crash_after_writing: Run, latest: Latest
) -> None:
    kbroker.produce("orders", order("10:10"), partition=0)
    run()
    kbroker.produce("orders", order("10:20"), partition=0)
    crash_after_writing()
    assert totals(latest) == {"10:00 ada": (2, 2.0)}
    kbroker.produce("orders", order("10:30"), partition=0)
    run()
    assert totals(latest) == {"10:00 ada": (3, 3.0)}
    assert len(kbroker.records("totals")) == 4
