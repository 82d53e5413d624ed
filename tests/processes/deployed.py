"""Deployment examples run as local processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import trio

from kbroker.client import check_round_trip

from ..cluster.etcd import check_there
from .commands import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


class Deployed:
    """One broker, initially stopped.

    Args:
        address: Address at which it must respond.
        arguments: Arguments of `kbroker`.
        environment: Additional environment variables.
    """

    def __init__(
        self, address: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.address = address
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker and wait until it responds."""
        self._process = subprocess.Popen(_program(self._arguments), env=self._environment)
        wait_until(self._answers)

    def _answers(self) -> bool:
        host, _, port = self.address.partition(":")
        try:
            trio.run(check_round_trip, host, int(port))
        except OSError:
            return False
        return True

    def run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a kbroker command in the environment of the broker."""
        return subprocess.run(
            _program(arguments), env=self._environment, check=False, text=True, capture_output=True
        )

    def terminate(self) -> None:
        """Send SIGTERM and wait until the broker has exited."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(60) == 0

    def kill(self) -> None:
        """Kill the broker if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _program(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "kbroker", *arguments]


class Members:
    """Members of etcd with settings in their environments. Call `stop` at the end."""

    def __init__(self, environments: Iterable[Mapping[str, str]]) -> None:
        check_there()
        quiet = {**os.environ, "ETCD_LOG_LEVEL": "error"}
        self._processes = [
            subprocess.Popen(["etcd"], env={**quiet, **each}) for each in environments
        ]

    def stop(self) -> None:
        for each in self._processes:
            each.kill()
            each.wait()


def replace_locations(values: Mapping[str, str], replacements: Mapping[str, str]) -> dict[str, str]:
    """Return settings with addresses and directories replaced by local ones."""
    result = {}
    for name, value in values.items():
        for original, here in replacements.items():
            value = value.replace(original, here)
        result[name] = value
    return result
