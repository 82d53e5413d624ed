"""Fixtures of commands: settings, topics and data directories."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from ..commands import Cli, invoke_in_thread
from ..schemas.client import registry
from .log_directories import write
from .registries import Registered


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(no_settings_of_this_machine: None) -> None:
    """Run every test of this directory without profiles and addresses of this machine."""


@pytest.fixture
async def topic(cli: Cli) -> str:
    """Create a topic with two partitions, and five records in the first one."""
    await cli("topic", "create", "t", "-p", "2")
    times = [f"{1_700_000_000_000 + i * 1000}" for i in range(5)]
    for when in times:
        await cli("topic", "produce", "t", "x", "-p", "0", "-t", when)
    return "t"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a closed data directory with a topic of several segments and a committed offset."""
    directory = tmp_path_factory.mktemp("written") / "data"
    trio.run(write, directory)
    return directory


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """Return a copy of that directory, which the test may damage."""
    return Path(shutil.copytree(written, tmp_path / "data"))


@pytest.fixture
async def registered(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registered]:
    """Run a broker with a schema registry, and a topic `t` with one partition."""
    from kbroker.cli.target import ENVIRONMENT

    async with registry() as (broker, (client,)):
        monkeypatch.setenv(ENVIRONMENT, broker.bootstrap_servers)
        await invoke_in_thread("topic", "create", "t")
        yield Registered(invoke_in_thread, client)
