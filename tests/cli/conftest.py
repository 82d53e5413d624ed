"""The command line against a broker in this process."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio
from click.testing import CliRunner, Result

from kbroker.broker import Broker
from kbroker.cli import main
from kbroker.cli.profiles import FILE_VARIABLE
from kbroker.cli.target import ENVIRONMENT


class Cli(Protocol):
    """Run a command; fails the test when the exit status is not `status`."""

    def __call__(
        self, *args: str, stdin: str | bytes | None = None, status: int = 0
    ) -> Awaitable[Result]: ...


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restored_logging: None
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "profiles.toml"))


_alone = threading.Lock()
"""CliRunner replaces `sys.stdout`: what one of two commands prints could be found in the other."""


def invoke(*args: str, stdin: str | bytes | None = None, status: int = 0) -> Result:
    """Run a command in this thread, while no other one runs."""
    assert _alone.acquire(blocking=False), f"{args}: one command at a time"
    try:
        result = CliRunner().invoke(main, list(args), input=stdin, catch_exceptions=False)
    finally:
        _alone.release()
    assert result.exit_code == status, (args, result.exit_code, result.output)
    return result


@pytest.fixture
def cli(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs commands in a thread, beside the broker of the test."""
    monkeypatch.setenv(ENVIRONMENT, broker.bootstrap_servers)

    async def run(*args: str, stdin: str | bytes | None = None, status: int = 0) -> Result:
        with trio.fail_after(30):
            work = functools.partial(invoke, *args, stdin=stdin, status=status)
            return await trio.to_thread.run_sync(work)

    return run


ReadJson = Callable[..., Awaitable[Any]]


@pytest.fixture
def read_json(cli: Cli) -> ReadJson:
    """Runs a command with `-o json` and reads what it prints."""

    async def run(*args: str, status: int = 0) -> Any:
        return json.loads((await cli(*args, "-o", "json", status=status)).stdout)

    return run
