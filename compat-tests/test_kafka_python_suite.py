"""kafka-python's own integration tests from its source distribution.

kafka_python/service.py replaces the files that the distribution lacks. Tests that start their own
broker (with TLS and SASL listeners) cannot run against a running one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from harness.brokers import Broker, free_port
from harness.places import environment, environment_python

CLIENT = "kafka-python's own"
ENVIRONMENT = "kafka-python-tests"
VERSION = "4.4"
TESTS = 55
OTHER_LISTENERS = ("test_ssl_integration.py", "test_sasl_integration.py")
# Broker settings for the test of ACLs.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def run_suite(address: str, directory: Path, *options: str) -> dict[str, str]:
    """Run the suite in a new directory and return "passed", "failed" or "skipped" per test."""
    directory.mkdir()
    source = environment(ENVIRONMENT) / "source"
    (directory / "kafka").mkdir()
    report = directory / "report.xml"
    ignored = [f"--ignore=test/integration/{name}" for name in OTHER_LISTENERS]
    with (directory / "suite.log").open("wb") as log:
        subprocess.run(
            [
                *(str(environment_python(ENVIRONMENT)), "-W", "ignore", "-m", "pytest"),
                *("test/integration", "-q", "-p", "no:cacheprovider", "--timeout=60"),
                *(*ignored, f"--junitxml={report}", *options),
            ],
            cwd=source,
            env={
                **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
                "KAFKA_VERSION": VERSION,
                "KAFKA_ROOT": str(directory / "kafka"),
                "KAFKA_URI": f"kafka://{address}",
            },
            stdout=log,
            stderr=log,
            timeout=300,
            check=False,
        )
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {case.attrib["name"]: _verdict(case) for case in cases}


def _verdict(case: ElementTree.Element) -> str:
    if case.find("skipped") is not None:
        return "skipped"
    return "passed" if case.find("failure") is None and case.find("error") is None else "failed"


def test_kafka_python_integration_tests_pass(
    request: pytest.FixtureRequest, make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    kbroker = request.config.getoption("--broker") == "kbroker"
    properties = {"node.id": "0", "num.partitions": "4"} | AUTHORIZER
    broker = make_broker("kafka-python", properties)
    if kbroker:
        # The tests' own broker also has a configured advertised listener.
        broker.port = free_port()
        broker.advertise = broker.address
    broker.start()
    verdicts = run_suite(broker.address, tmp_path / "first")
    assert len(verdicts) - list(verdicts.values()).count("skipped") == TESTS
    failed = {name for name, verdict in verdicts.items() if verdict == "failed"}
    if failed:
        # Some tests wait only a second or two, so retry those that fail on a busy machine.
        again = run_suite(broker.address, tmp_path / "again", "-k", " or ".join(sorted(failed)))
        failed = {name for name in failed if again[name] == "failed"}
    broker.stop()
    print(f"figures: on {broker.name} {TESTS - len(failed)} of {TESTS}")
    log = (tmp_path / "first" / "suite.log").read_text(errors="replace")
    assert not failed, log[-5_000:]
