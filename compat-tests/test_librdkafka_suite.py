"""librdkafka's own broker tests, from the sources in its JavaScript client."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from harness.brokers import Broker
from harness.java import command_line
from harness.places import environment
from harness.tools import COMMANDS

CLIENT = "librdkafka's own"
SECONDS = 1_500
PASSED, FAILED, SKIPPED = "PASSED", "FAILED", "SKIPPED"
# A row of the summary: name, verdict, seconds, and the reason of a failure or skip.
ROW = re.compile(
    rf"^\|\s*(\d{{4}}_\w+)\s*\|\s*({PASSED}|{FAILED}|{SKIPPED})\s*\|[^|\n]*\|(.*)$", re.MULTILINE
)
# Reason for skipping tests that need no broker (option -L).
LOCAL = "Filtered due to negative test flags"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Some tests create ACLs, which also apply to clients without authentication.
PROPERTIES = {
    "num.partitions": "4",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
# One test always creates topics with three replicas.
OURS = {"replication.factor.clamp": "true"}
TOOLS = ("kafka-topics", "kafka-configs", "kafka-acls")


def kafka_directory(directory: Path) -> Path:
    """Create a directory with Kafka's scripts, which the suite runs."""
    scripts = directory / "kafka" / "bin"
    scripts.mkdir(parents=True)
    for name in TOOLS:
        words = " ".join(f"'{word}'" for word in command_line("kafka-4.4", COMMANDS[name]))
        script = scripts / f"{name}.sh"
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        script.chmod(0o755)
    return scripts.parent


class Verdict(NamedTuple):
    """Verdict of a test and its reason."""

    verdict: str
    reason: str


def verdicts_of(printed: str) -> dict[str, Verdict]:
    """Return the rows of the suite's summary by test name."""
    rows = ROW.findall(COLOUR.sub("", printed))
    return {name: Verdict(verdict, reason.strip()) for name, verdict, reason in rows}


def counts_of(verdicts: Mapping[str, Verdict]) -> str:
    """Return the number of tests per verdict and per skip reason."""
    counts = Counter(each.verdict for each in verdicts.values())
    reasons = Counter(each.reason for each in verdicts.values() if each.verdict == SKIPPED)
    skips = [
        f"{count} {'need no broker' if reason == LOCAL else reason or 'without a reason'}"
        for reason, count in reasons.most_common()
    ]
    figures = f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped"
    return f"{figures} ({'; '.join(skips)})" if skips else figures


def run_suite(address: str, directory: Path, *options: str) -> str:
    """Run the suite and return its output."""
    tests = environment("librdkafka-tests") / "librdkafka" / "tests"
    conf, log = directory / "test.conf", directory / "suite.log"
    conf.write_text(
        f"metadata.broker.list={address}\ntest.timeout.multiplier=3\ntest.topic.random=true\n"
    )
    with log.open("wb") as out:
        subprocess.run(
            [str(tests / "test-runner"), "-L", "-Q", *options],
            cwd=tests,
            env=os.environ
            | {
                "RDKAFKA_TEST_CONF": str(conf),
                "TEST_KAFKA_VERSION": "4.2.0",
                "KAFKA_PATH": str(kafka_directory(directory)),
                "BROKERS": address,
                "LD_LIBRARY_PATH": "../src:../src-cpp",
            },
            stdout=out,
            stderr=out,
            timeout=SECONDS,
            check=False,
        )
    return log.read_text(errors="replace")


def test_librdkafka_suite_passes(
    request: pytest.FixtureRequest, make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    is_kbroker = request.config.getoption("--broker") == "kbroker"
    broker = make_broker("librdkafka", PROPERTIES | (OURS if is_kbroker else {}))
    broker.start()
    printed = run_suite(broker.address, tmp_path, "-p3")
    broker.stop()
    verdicts = verdicts_of(printed)
    print(f"figures: on {broker.name} {counts_of(verdicts)}")
    passed, failed = (
        {name for name, each in verdicts.items() if each.verdict == verdict}
        for verdict in (PASSED, FAILED)
    )
    assert len(passed) > 80, printed[-5_000:]
    assert failed == (set() if is_kbroker else {"0103_transactions"}), printed[-5_000:]


# -- output of the suite

PRINTED = """\
TEST 20261122120000 (bare, scenario default) SUMMARY
#==================================================================#
|\x1b[36m <MAIN>                                   |    PASSED | 480.001s \x1b[0m|
|\x1b[36m 0000_unittests                           |    SKIPPED |   0.000s \x1b[0m|\x1b[36m {local}\x1b[0m
|\x1b[36m 0004_conf                                |    SKIPPED |   0.000s \x1b[0m|\x1b[36m {local}\x1b[0m
|\x1b[32m 0011_produce_batch                       |     PASSED |   2.503s \x1b[0m|
|\x1b[36m 0022_consume_batch_local                 |    SKIPPED |   0.010s \x1b[0m|\x1b[36m not in quick mode\x1b[0m
|\x1b[36m 0034_offset_reset                        |    SKIPPED |   0.000s \x1b[0m|\x1b[36m \x1b[0m
|\x1b[31m 0081_admin                               |     FAILED |   9.120s \x1b[0m|\x1b[31m no ACLs\x1b[0m
#==================================================================#
"""


def test_skipped_tests_are_counted_by_reason() -> None:
    verdicts = verdicts_of(PRINTED.format(local=LOCAL))
    assert len(verdicts) == 6
    assert verdicts["0081_admin"] == (FAILED, "no ACLs")
    assert counts_of(verdicts) == (
        "1 passed, 1 failed, 4 skipped (2 need no broker; 1 not in quick mode; 1 without a reason)"
    )
    assert counts_of({"0011_produce_batch": Verdict(PASSED, "")}) == "1 passed, 0 failed, 0 skipped"
