"""Options of the tests that draw at random, and brokers in this process.

Environment variables stand for the options in a soak run.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.broker import Broker
from kbroker.runtime.clock import Clock

from .brokers import Start, started
from .wire import Wire, connected

if TYPE_CHECKING:
    from kbroker.testing import BrokerThread

    from .commands import Cli, ReadJson
    from .security.certificates import Authority


# Size of the disk that tests report to brokers in this process.
DISK_BYTES = 1 << 40


def pytest_configure() -> None:
    """Disable Hypothesis's deadlines: on a busy machine any test can be slow."""
    with suppress(ImportError):  # missing in the environment of the demo
        from hypothesis import HealthCheck, settings

        settings.register_profile(
            "no-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
        settings.load_profile("no-deadline")
    with suppress(ImportError):  # missing in the environment of PySpark
        from kafka.net.inet import KafkaNetSocket

        setattr(KafkaNetSocket, "socket", lambda client, *kind: _ForgottenSocket(*kind))  # noqa: B010


class _ForgottenSocket(socket.socket):
    """A socket of kafka-python that was connecting when its client failed or was closed.

    The client forgets such sockets, and the test that runs during garbage collection would fail.
    All other unclosed sockets do fail a test.
    """

    def __del__(self) -> None:
        self.close()


# Options with a number: name, environment variable of the default, default, and help.
NUMBERS = [
    ("--clusters", "KBROKER_CLUSTERS", 4, "How many tests with the same names tests/isolation has"),
    ("--frames", "KBROKER_FUZZ_FRAMES", 2000, "How many mutated frames tests/fuzz sends"),
    ("--damages", "KBROKER_DAMAGES", 3, "How many damaged data directories tests/damage starts on"),
    ("--disk-faults", "KBROKER_DISK_FAULTS", 1, "How often tests/processes lets a disk fail"),
    (
        "--large-values",
        "KBROKER_LARGE_VALUES",
        150,
        "Requests with a large value in tests/process/test_serving_memory.py",
    ),
    (
        "--long-records",
        "KBROKER_LONG_RECORDS",
        0,
        "How many records tests/spark/long has; 0: it is left out",
    ),
    (
        "--long-kills",
        "KBROKER_LONG_KILLS",
        10,
        "How often it kills the broker, and how often Spark",
    ),
    ("--partitions", "KBROKER_MANY_PARTITIONS", 1000, "How many partitions tests/many makes"),
    (
        "--rounds",
        "KBROKER_KILL_ROUNDS",
        2,
        "Rounds of kill, transaction, replication and compaction tests",
    ),
    (
        "--schemas",
        "KBROKER_SCHEMAS",
        80,
        "How many schemas are registered in tests/schemas/test_kills.py",
    ),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kbroker")
    for option, variable, default, text in NUMBERS:
        group.addoption(
            option,
            type=int,
            default=int(os.environ.get(variable, str(default))),
            help=f"{text} ({variable}).",
        )
    _add_selection(group)


def _add_selection(group: pytest.OptionGroup) -> None:
    """Add the options that select or repeat cases in other ways than by number."""
    group.addoption(
        "--faults",
        choices=["nodes", "networks", "etcd"],
        help="Only those of tests/machines that happen to these; otherwise all.",
    )
    group.addoption(
        "--seed",
        type=int,
        default=int(os.environ.get("KBROKER_SEED") or random.SystemRandom().randrange(10**9)),
        help="Seed of what draws at random, to repeat a run (KBROKER_SEED).",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')} (repeat a random test with --seed)"


@pytest.fixture(scope="module")
def thread() -> Iterator[BrokerThread]:
    """Return a thread in which the brokers of a module's tests run."""
    from kbroker.testing import BrokerThread

    thread = BrokerThread()
    yield thread
    thread.close()


@pytest.fixture(params=["memory", "disk"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Return a function that opens brokers; tests that use it run in memory and on disk."""
    directory = None if request.param == "memory" else tmp_path / "data"

    def open_one(
        clock: Clock | None = None, /, **properties: Any
    ) -> AbstractAsyncContextManager[Broker]:
        return started(directory, clock, **properties)

    return open_one


@pytest.fixture(scope="module", autouse=True)
def _what_was_before_is_left_alone() -> None:
    """Freeze existing objects: garbage collections need not scan those of earlier tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _half_full_disk() -> Iterator[None]:
    """Report a half full disk, because brokers warn if the disk of this machine is nearly full."""
    usage = type(shutil.disk_usage(Path.cwd()))(DISK_BYTES, DISK_BYTES // 2, DISK_BYTES // 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        yield


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Start a broker in memory."""
    async with started() as opened:
        yield opened


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    """Open a connection to `broker`."""
    async with connected(broker.endpoint) as opened:
        yield opened


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return a certificate authority that writes certificates into the test's directory."""
    from .security.certificates import (
        Authority,
    )  # its dependencies are missing in Spark's environment

    return Authority(tmp_path)


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Restore the logging, because a `serve` command changes it for the whole process."""
    root = logging.getLogger()
    kept = (root.handlers[:], root.level, logging.getLogger("kbroker").level)
    yield
    root.handlers[:] = kept[0]
    root.setLevel(kept[1])
    logging.getLogger("kbroker").setLevel(kept[2])
    logging.getLogger("kbroker.protocol").setLevel(logging.NOTSET)
    logging.getLogger("trio.serve_listeners").filters.clear()


@pytest.fixture
def no_settings_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restored_logging: None
) -> None:
    """Hide the machine's command-line profiles and broker address."""
    from kbroker.cli.profiles import FILE_VARIABLE
    from kbroker.cli.target import ENVIRONMENT

    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "profiles.toml"))


@pytest.fixture
def cli(broker: Broker, monkeypatch: pytest.MonkeyPatch, no_settings_of_this_machine: None) -> Cli:
    """Return a function that runs commands in a thread, while the test's broker runs."""
    from kbroker.cli.target import ENVIRONMENT

    from .commands import invoke_in_thread

    monkeypatch.setenv(ENVIRONMENT, broker.bootstrap_servers)
    return invoke_in_thread


@pytest.fixture
def read_json(cli: Cli) -> ReadJson:
    """Return a function that runs commands with `-o json` and parses their output."""

    async def run(*args: str, status: int = 0) -> Any:
        return json.loads((await cli(*args, "-o", "json", status=status)).stdout)

    return run
