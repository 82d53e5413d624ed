"""Soak test of a share group through many kills of its members and of the broker (KIP-932).

Half of the kills hit members, which are replaced, and half the broker. A kill counts only if
members have had records acknowledged since the previous one. At the end, each record was accepted,
rejected, or archived because it reached the delivery limit.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from harness.brokers import Broker
from harness.clients import eventually
from harness.share_workers import NOT_HELD, ShareChecker, ShareWorkers
from harness.tools import Tools
from harness.traffic import Feeder, Reader, Record, create_topics

CLIENT = "java tools"
TOPIC, GROUP = "work", "workers"
PARTITIONS, MEMBERS = 3, 3
# Default maximum number of deliveries per record.
LIMIT = 5
# Acknowledgement of a record by its number modulo 23. All other records are accepted.
ACKNOWLEDGEMENTS = {0: "reject", 3: "release", 7: "release,accept"}
# Minimum number of successful acknowledgements before the next kill.
SETTLED_MIN = 40
# Maximum seconds to wait for work.
SECONDS = 60.0


def some_work(step: int) -> list[Record]:
    acknowledgement = ACKNOWLEDGEMENTS.get(step % 23, "accept")
    return [Record(TOPIC, str(step), acknowledgement, int(time.time() * 1000))]


def work_done(workers: ShareWorkers) -> int:
    workers.check()
    return workers.count_acknowledged()


def wait_for_work(workers: ShareWorkers) -> int:
    """Wait for SETTLED_MIN acknowledgements from now on, and return their number."""
    before = work_done(workers)
    seen = eventually(
        lambda: work_done(workers), lambda now: now >= before + SETTLED_MIN, "work", SECONDS
    )
    return int(seen) - before


def lags(bootstrap: str, tools: Tools) -> list[str]:
    """Return the lag of the group in each partition."""
    completed = tools.run(
        "kafka-share-groups", "--bootstrap-server", bootstrap, "--describe", "--group", GROUP
    )
    return [line.split()[4] for line in completed.stdout.splitlines() if line.startswith(GROUP)]


def configure(
    bootstrap: str, tools: Tools, configs: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Configure the group to read from the start and to assign partitions at once."""
    values = {"share.auto.offset.reset": "earliest", "share.assignment.interval.ms": "0", **configs}
    completed = tools.run(
        "kafka-configs",
        *("--bootstrap-server", bootstrap, "--alter"),
        *("--entity-type", "groups", "--entity-name", GROUP),
        *("--add-config", ",".join(f"{name}={value}" for name, value in values.items())),
    )
    assert not completed.status, completed


def rounds_of_kills(broker: Broker, workers: ShareWorkers, kills: int) -> Counter[str]:
    """Kill members and the broker in turn, each after some work, and return statistics."""
    figures: Counter[str] = Counter()
    for number in range(kills):
        work = wait_for_work(workers)
        time.sleep(random.random() / 5)
        if number % 2:
            figures["killed members"] += 1
            unacknowledged = workers.kill_oldest()
            figures["unacknowledged records of killed members"] += unacknowledged
            figures["killed members with unacknowledged records"] += unacknowledged > 0
            workers.start()
        else:
            broker.kill()
            figures["killed brokers"] += 1
            broker.start()
        figures["rounds with work"] += work >= SETTLED_MIN
    return figures


def test_each_record_is_settled_once_despite_kills(
    request: pytest.FixtureRequest, own_broker: Broker, tools: Tools, tmp_path: Path
) -> None:
    kills = request.config.getoption("--kills")
    create_topics(own_broker.address, PARTITIONS, TOPIC)
    configure(own_broker.address, tools)
    checker = ShareChecker(LIMIT)
    feeder = Feeder(own_broker.address, some_work)
    with ShareWorkers(
        own_broker.address, GROUP, TOPIC, checker, tmp_path / "workers.err"
    ) as workers:
        for _ in range(MEMBERS):
            workers.start()
        feeder.start()
        figures = rounds_of_kills(own_broker, workers, kills)
        wait_for_work(workers)
        written = len(feeder.finish())
        ends = Reader(own_broker.address).ends(TOPIC)
        eventually(
            lambda: lags(own_broker.address, tools),
            lambda seen: seen == ["0"] * PARTITIONS,
            "lag",
            SECONDS,
        )
        workers.leave()
    workers.check_reports()
    kinds = checker.count_outcomes(ends)
    print(f"\nfigures: {dict(figures)}; {written} records: {kinds}; {dict(checker.done)}")
    assert figures["rounds with work"] == kills
    assert not checker.wrong, (checker.first_wrong, checker.wrong)
    assert sum(kinds.values()) == written
    assert kinds["accepted"] > written / 2
    assert kinds["rejected"]
    assert kinds["exhausted"]


SUCCESS = ""


@pytest.mark.parametrize(
    ("wrong", "reports"),
    [
        (None, [(1, "accept", SUCCESS)]),
        (None, [(1, "release", SUCCESS), (2, "accept", SUCCESS)]),
        (None, [(1, "accept", NOT_HELD), (1, "accept", SUCCESS)]),
        (None, [(1, "accept", "TimeoutException")]),
        (None, [(1, "release", SUCCESS), (2, "release", SUCCESS), (3, "release", SUCCESS)]),
        ("lost", []),
        ("lost", [(1, "release", SUCCESS)]),
        ("lost", [(1, "accept", NOT_HELD)]),
        (
            "delivered after its final acknowledgement: accept",
            [(1, "accept", SUCCESS), (2, "accept", NOT_HELD)],
        ),
        (
            "delivered after its final acknowledgement: reject",
            [(1, "reject", SUCCESS), (2, "accept", NOT_HELD)],
        ),
        ("a delivery was not counted", [(1, "release", SUCCESS), (1, "accept", SUCCESS)]),
        ("the delivery count is too high", [(2, "accept", SUCCESS)]),
        ("the delivery count is too high", [(1, "accept", NOT_HELD), (3, "accept", SUCCESS)]),
    ],
)
def test_checker_reports_wrong_deliveries(
    wrong: str | None, reports: list[tuple[int, str, str]]
) -> None:
    checker = ShareChecker(limit=3)
    for deliveries, acknowledgement, failure in reports:
        checker.check_delivery((0, 0), deliveries, acknowledgement)
        if failure:
            checker.record_failure((0, 0), acknowledgement, failure)
        else:
            checker.record_success((0, 0), deliveries, acknowledgement)
    checker.count_outcomes({0: 1})
    assert set(checker.wrong) == ({wrong} if wrong else set())


def test_checker_reports_record_settled_by_two_members() -> None:
    checker = ShareChecker(limit=3)
    checker.check_delivery((0, 0), 1, "accept")
    checker.check_delivery((0, 0), 1, "accept")
    checker.record_success((0, 0), 1, "accept")
    checker.record_success((0, 0), 1, "accept")
    assert set(checker.wrong) == {"acknowledged after its final acknowledgement: accept"}


def test_checker_allows_unreported_delivery_to_killed_member() -> None:
    checker = ShareChecker(limit=3)
    checker.check_delivery((0, 0), 1, "release")
    checker.record_success((0, 0), 1, "release")
    checker.kills.append({0: 1})
    checker.check_delivery((0, 0), 3, "accept")
    checker.record_success((0, 0), 3, "accept")
    checker.check_delivery((0, 1), 2, "accept")  # not written yet at the time of the kill
    checker.record_success((0, 1), 2, "accept")
    assert checker.count_outcomes({0: 2}) == {"accepted": 2}
    assert checker.wrong == {"the delivery count is too high": 1}
