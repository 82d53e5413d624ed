"""Commands against nodes that are processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WAIT_SECONDS = 120


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


def ailments(bootstrap: str) -> str:
    """What is wrong with a cluster, as a replica that is not in sync; nothing when it is healthy."""
    done = run("cluster", "health", "--bootstrap", bootstrap)
    return done.stdout + done.stderr if done.returncode else ""


def wait_until_healthy(bootstrap: str) -> None:
    wait_until(lambda: not ailments(bootstrap), lambda: ailments(bootstrap))


def wait_until(condition: Callable[[], bool], why_not: Callable[[], str] = str) -> None:
    """Wait; who waits too long is told `why_not`."""
    ends_at = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < ends_at, why_not() or condition
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


def children_of(parent: int) -> dict[int, list[str]]:
    """The command lines of the processes that a process has started."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = (path / "stat").read_text().rpartition(")")[2].split()
            words = (path / "cmdline").read_text().split("\0")[:-1]
        except OSError:  # it has ended
            continue
        if int(status[1]) == parent and words:
            found[int(path.name)] = words
    return found
