"""franz-go's own tests against a broker.

Chains of consumers and producers run with and without transactions and with every assignor, while
members join and leave. Its regression tests follow.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.brokers import Broker
from harness.places import environment

CLIENT = "franz-go's own"
RUN = "Group|Txn|Consume|Issue|Pause|Unknown|Ping|Direct|AddRemove|Pooling|Lookback|Hook"
RECORDS = 200_000
SECONDS = 900
# Kafka's default segment size: one test writes a batch larger than the segments of other tests
# here.
PROPERTIES = {"log.segment.bytes": str(1 << 30)}
VERDICT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)
# Reasons for which the suite skips tests if the broker lacks a feature: KIP-848, share groups, old
# brokers.
NOT_YET = re.compile(r"848|[Ss]hare|BrokerTooOld")


def run_suite(address: str, directory: Path, *, chaos: bool) -> dict[str, str]:
    """Run the suite and return the verdict of each test: PASS, FAIL or SKIP."""
    log = directory / f"suite-{chaos}.log"
    with log.open("wb") as out:
        subprocess.run(
            [
                str(environment("franz-go-tests") / "kgo.test"),
                *(f"-test.run={'ETL|TxnEtl' if chaos else RUN}", "-test.v"),
                f"-test.timeout={SECONDS}s",
            ],
            cwd=directory,
            env=os.environ
            | {
                "KGO_SEEDS": address,
                "KGO_TEST_RF": "1",
                "KGO_TEST_RECORDS": str(RECORDS),
                "KGO_TEST_CHAOS": str(int(chaos)),
            },
            stdout=out,
            stderr=out,
            timeout=SECONDS + 60,
            check=False,
        )
    return {name: verdict for verdict, name in VERDICT.findall(log.read_text(errors="replace"))}


def _said_by(name: str, log: str) -> str:
    """Return the end of a test's output before its verdict."""
    return log.partition(f"--- FAIL: {name} ")[0][-3_000:]


@pytest.mark.parametrize("chaos", [False, True], ids=["steady", "chaos"])
def test_franz_go_suite_passes(
    make_broker: Callable[..., Broker], tmp_path: Path, chaos: bool
) -> None:
    broker = make_broker("franz-go", PROPERTIES)
    broker.start()
    verdicts = run_suite(broker.address, tmp_path, chaos=chaos)
    broker.stop()
    counts = Counter(verdicts.values())
    print(f"figures: on {broker.name} {dict(counts)}{' with chaos' if chaos else ''}")
    log = (tmp_path / f"suite-{chaos}.log").read_text(errors="replace")
    failed = [name for name, verdict in verdicts.items() if verdict == "FAIL"]
    assert failed == [], "\n".join(_said_by(name, log) for name in failed)
    assert counts["PASS"] >= (8 if chaos else 80), log[-5_000:]
    if broker.name == "kbroker":
        left_out = [name for name, verdict in verdicts.items() if verdict == "SKIP"]
        assert [name for name in left_out if not NOT_YET.search(name)] == []
