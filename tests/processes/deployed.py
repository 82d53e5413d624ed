"""What the examples of deployment describe, as processes of this machine."""

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
    """One broker. It is not started yet.

    Parameters: `address` is where it is to answer; `words` are those behind `kbroker`; `environment`
    is what it has besides ours.
    """

    def __init__(self, address: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.address = address
        self._words = words
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(_program(self._words), env=self._environment)
        wait_until(self._answers)

    def _answers(self) -> bool:
        host, _, port = self.address.partition(":")
        try:
            trio.run(check_round_trip, host, int(port))
        except OSError:
            return False
        return True

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of kbroker where the broker is."""
        return subprocess.run(
            _program(words), env=self._environment, check=False, text=True, capture_output=True
        )

    def terminate(self) -> None:
        """Stop it as all of these do, and wait until it has ended."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(60) == 0

    def kill(self) -> None:
        """End it at once; one that does not run is none the worse for it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _program(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "kbroker", *words]


class Members:
    """Members of etcd, each with the settings in its environment. Call `stop` at the end."""

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


def replaced(values: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """Settings with the places of this machine, such as addresses and directories, for those named."""
    result = {}
    for name, value in values.items():
        for place, here in places.items():
            value = value.replace(place, here)
        result[name] = value
    return result
