"""The programs under examples/ pass their own tests in an environment from their requirements.

Tests that need no broker of their own also pass against Apache Kafka.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from harness.brokers import Broker
from harness.places import ROOT, environment_python

CLIENT = "examples"
EXAMPLES = [
    "kafka_python_service",
    "confluent_service",
    "exactly_once_service",
    "fastapi_service",
    "stream_processor",
]
# Minimum number of tests per example: work, restart, duplicate delivery, rebalance, dead letter,
# retention.
TESTS_MIN = 6
# Minimum number of tests that pass without fault injection: work, rebalance, dead letter.
EXTERNAL_TESTS_MIN = 3
SECONDS = 120


def run_tests(example: str, *options: str) -> tuple[dict[str, int], str]:
    """Run an example's tests. Return the number of tests per outcome and pytest's output."""
    done = subprocess.run(
        [
            *(str(environment_python(f"example-{example}")), "-m", "pytest", "-q", "-ra"),
            *("-p", "no:cacheprovider", *options),
        ],
        cwd=ROOT / "examples" / example,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    verdicts = re.findall(r"(\d+) ([a-z]+)", done.stdout.rstrip().rpartition("\n")[2])
    return {what: int(number) for number, what in verdicts}, done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_passes_its_own_tests(example: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--broker") == "kbroker":
        verdicts, printed = run_tests(example)
        assert verdicts.keys() == {"passed"}, printed
        assert verdicts["passed"] >= TESTS_MIN
    else:
        kafka: Broker = request.getfixturevalue("broker")
        verdicts, printed = run_tests(example, "--kbroker-bootstrap", kafka.address)
        assert verdicts.keys() == {"passed", "skipped"}, printed
        assert verdicts["passed"] >= EXTERNAL_TESTS_MIN
