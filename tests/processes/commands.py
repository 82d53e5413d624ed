"""CLI commands against nodes in processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WAIT_SECONDS = 120


def kbroker(bootstrap: str, *arguments: str, given: str = "", status: int = 0) -> str:
    """Run a command against a node and return its output."""
    done = run(*arguments, "--bootstrap", bootstrap, given=given)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def serve_error(*arguments: str) -> str:
    """Return the error message of a rejected `kbroker serve`."""
    done = run("serve", *arguments)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    *_, sentence = done.stderr.splitlines()
    return sentence


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command until it exits."""
    return subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )


def health_problems(bootstrap: str) -> str:
    """Return the problems of a cluster; empty if it is healthy."""
    done = run("cluster", "health", "--bootstrap", bootstrap)
    return done.stdout + done.stderr if done.returncode else ""


def wait_until_healthy(bootstrap: str) -> None:
    wait_until(lambda: not health_problems(bootstrap), lambda: health_problems(bootstrap))


def wait_until(condition: Callable[[], bool], why_not: Callable[[], str] = str) -> None:
    """Wait for a condition; after a timeout fail with the text of `why_not`."""
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
    """Return the numbers in `orders`, sorted."""
    got = kbroker(bootstrap, "topic", "consume", "orders", "-o", ":end", "-f", "%v\\n")
    return sorted(map(int, got.split()))


def children_of(parent: int) -> dict[int, list[str]]:
    """Return the command lines of a process's children by process ID."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = (path / "stat").read_text().rpartition(")")[2].split()
            arguments = (path / "cmdline").read_text().split("\0")[:-1]
        except OSError:  # the process has exited
            continue
        if int(status[1]) == parent and arguments:
            found[int(path.name)] = arguments
    return found
