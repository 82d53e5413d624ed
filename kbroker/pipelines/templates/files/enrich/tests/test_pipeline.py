"""Tests of the join: correct customers, no lost or duplicate orders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kbroker.testing import LocalBroker
from pyspark.sql import SparkSession

from my_pipeline.conf import Conf
from my_pipeline.pipeline import build

Run = Callable[[], None]
Latest = Callable[[str], dict[str, str]]

ADA = {"name": "Ada Lovelace", "country": "UK"}
BOB = {"name": "Bob", "country": "US"}

pytestmark = pytest.mark.kbroker(
    topics={"orders": 2, "customers": 2, "enriched": 2, "rejected": 1, "unmatched": 1}
)


def results(latest: Latest) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in latest("enriched").items()}


def order(number: int, customer: str = "ada") -> dict[str, Any]:
    return {"id": str(number), "customer": customer, "amount": 9.5}


def test_order_is_joined_with_customer(kbroker: LocalBroker, run: Run, latest: Latest) -> None:
    kbroker.produce("customers", {"name": "?", "country": "?"}, key="ada")
    kbroker.produce("customers", ADA, key="ada")
    kbroker.produce("orders", order(1), partition=0)
    kbroker.produce("orders", order(2, "nobody"), partition=1)
    kbroker.produce("orders", '{"id": "3", "amount": "much"}', partition=1)
    run()
    nobody = {"name": None, "country": None}
    assert results(latest) == {
        "orders-0-0": order(1) | ADA,
        "orders-1-0": order(2, "nobody") | nobody,
    }
    (rejected,) = kbroker.records("rejected")
    assert (rejected.key, rejected.text) == (b"orders-1-1", '{"id": "3", "amount": "much"}')
    assert rejected.headers == (("reason", b"invalid"),)


def test_running_stream_uses_current_table(
    spark: SparkSession, conf: Conf, kbroker: LocalBroker, latest: Latest
) -> None:
    kbroker.produce("customers", BOB, key="bob")
    query = build(spark, replace(conf, unmatched="unmatched"))
    try:
        kbroker.produce("orders", order(1, "bob"), partition=0)
        query.processAllAvailable()
        kbroker.produce("customers", ADA, key="ada")
        kbroker.produce("customers", None, key="bob")
        kbroker.produce("orders", order(2, "ada"), partition=0)
        kbroker.produce("orders", order(3, "bob"), partition=0)
        query.processAllAvailable()
    finally:
        query.stop()
    found = results(latest)
    assert found == {"orders-0-0": order(1, "bob") | BOB, "orders-0-1": order(2, "ada") | ADA}
    assert list(latest("unmatched")) == ["orders-0-2"]


def test_repeated_batch_writes_same_results(
    kbroker: LocalBroker, run: Run, crash_after_writing: Run, latest: Latest
) -> None:
    kbroker.produce("customers", ADA, key="ada")
    for number in range(3):
        kbroker.produce("orders", order(number), partition=0)
    crash_after_writing()
    kbroker.produce("orders", order(3), partition=0)
    run()
    assert len(kbroker.records("enriched")) == 3 + 4
    assert results(latest) == {f"orders-0-{each}": order(each) | ADA for each in range(4)}
