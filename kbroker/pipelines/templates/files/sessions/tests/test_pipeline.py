"""Tests of the sessions: correct results, rejected late clicks, and no duplicates after a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

import pytest
from kbroker.testing import LocalBroker

from my_pipeline.watch import Watch

Run = Callable[[], None]
Latest = Callable[[str], dict[str, str]]
Click = Callable[..., None]

pytestmark = pytest.mark.kbroker(topics={"clicks": 2, "sessions": 2, "rejected": 1})


@pytest.fixture
def click(kbroker: LocalBroker) -> Click:
    """Return a function that produces a click `delay` minutes after it happened.

    Without a visitor, the click is a heartbeat, which only advances the watermark.
    """

    def send(
        minute: str,
        visitor: str | None = None,
        page: str = "/",
        *,
        partition: int = 0,
        delay: int = 0,
    ) -> None:
        time = f"2026-03-01T{minute}:00Z"
        value = {"time": time, "visitor": visitor, "page": page}
        arrived = datetime.fromisoformat(time).timestamp() + delay * 60
        kbroker.produce("clicks", value, partition=partition, timestamp=int(arrived * 1000))

    return send


def sessions(latest: Latest) -> dict[str, tuple[str, int, str, str]]:
    """Return the latest sessions by start and visitor, for example "10:00 ada".

    A session is (end, number of clicks, first page, last page).
    """
    found = {}
    for key, text in latest("sessions").items():
        each = json.loads(text)
        start, visitor = key.split()
        assert (each["start"], each["visitor"]) == (start, visitor)
        found[f"{start[11:16]} {visitor}"] = (
            *(each["end"][11:16], each["clicks"]),
            *(each["entry"], each["exit"]),
        )
    return found


def test_gap_ends_session(run: Run, click: Click, latest: Latest, watch: Watch) -> None:
    click("10:20", "ada", "/basket", partition=1)
    click("10:00", "ada", "/", partition=0)
    click("10:10", "bob", "/help", partition=0)
    click("10:51", "ada", "/again", partition=1)  # 31 minutes later: a new session
    run()
    assert sessions(latest) == {}
    click("15:00")
    run()
    assert sessions(latest) == {
        "10:00 ada": ("10:20", 2, "/", "/basket"),
        "10:10 bob": ("10:10", 1, "/help", "/help"),
        "10:51 ada": ("10:51", 1, "/again", "/again"),
    }
    assert watch.dropped == 0


def test_late_and_invalid_clicks_are_rejected(
    kbroker: LocalBroker, run: Run, click: Click, latest: Latest
) -> None:
    click("10:00", "ada")
    click("10:05", "ada", delay=16)
    click("10:10", "ada", delay=14)
    kbroker.produce("clicks", "nonsense", partition=1)
    click("12:00", "bob", delay=-90, partition=1)
    click("15:00")
    run()
    assert sessions(latest) == {"10:00 ada": ("10:10", 2, "/", "/")}
    found = {each.key: each.headers[0][1] for each in kbroker.records("rejected")}
    assert found == {
        b"clicks-0-1": b"late",
        b"clicks-1-0": b"invalid",
        b"clicks-1-1": b"in the future",
    }


def test_repeated_batch_writes_no_duplicates(
    kbroker: LocalBroker, run: Run, crash_after_writing: Run, click: Click, latest: Latest
) -> None:
    click("10:00", "ada")
    click("10:05", "ada", delay=20)
    run()
    click("15:00")
    run()
    click("15:10", "bob", delay=20)
    crash_after_writing()
    run()
    assert sessions(latest) == {"10:00 ada": ("10:00", 1, "/", "/")}
    late = [each.key for each in kbroker.records("rejected")]
    assert len(late) == 3
    assert set(late) == {b"clicks-0-1", b"clicks-0-3"}
