"""Commands against nodes that are processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

WAIT_SECONDS = 60


def kbroker(bootstrap: str, *words: str, given: str = "", status: int = 0) -> str:
    """Run a command against a node; returns what it prints."""
    done = run(*words, "--bootstrap", bootstrap, given=given)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def refused(*words: str) -> str:
    """The sentence with which a start of `kbroker serve` ends that cannot be."""
    done = run("serve", *words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    *_, sentence = done.stderr.splitlines()
    return sentence


def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "kbroker", *words],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )


def is_healthy(bootstrap: str) -> bool:
    """Whether all replicas of all partitions are in sync."""
    return run("cluster", "health", "--bootstrap", bootstrap).returncode == 0


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < ends_at, condition
        time.sleep(0.2)


def lines(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def produce(bootstrap: str, first: int, last: int) -> None:
    """Write numbers to `orders`, with acks=all."""
    kbroker(bootstrap, "topic", "produce", "orders", "-q", given="\n".join(lines(first, last)))


def consume(bootstrap: str) -> list[int]:
    """The numbers in `orders`, in their order as numbers."""
    got = kbroker(bootstrap, "topic", "consume", "orders", "-o", ":end", "-f", "%v\\n")
    return sorted(map(int, got.split()))
