"""Node processes of a supervisor: starts, commands and stops that happen at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.process import supervising
from kbroker.process.bootstrap_listeners import BootstrapListeners
from kbroker.process.errors import StartFailed
from kbroker.process.node_messages import BEGIN, SERVE_HTTP
from kbroker.process.options import ServeOptions
from kbroker.process.shared_http import SharedHttp
from kbroker.process.supervising import _NodeProcess, _Supervisor

from ..wire import until

# Seconds that a start takes. As in trio, it cannot be cancelled.
LAUNCH_SECONDS = 0.2


class Launched:
    """Starts a program that ends with its input, in place of the process of a node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[trio.Process] = []
        self.is_launching = False
        self._open_process = trio.lowlevel.open_process
        monkeypatch.setattr(trio.lowlevel, "open_process", self._launch)
        monkeypatch.setattr(supervising, "RESTART_BACKOFF_SECONDS", (0.0, 0.0))

    async def _launch(self, _: list[str], **options: object) -> trio.Process:
        self.is_launching = True
        with trio.CancelScope(shield=True):
            await trio.sleep(LAUNCH_SECONDS)
            process: trio.Process = await self._open_process(["cat"], **options)  # type: ignore[call-overload]
        self.processes.append(process)
        self.is_launching = False
        return process


async def ignore_change() -> None:
    """Ignore a change of the processes."""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    return Launched(monkeypatch)


@pytest.fixture
def node(tmp_path: Path, launched: Launched) -> _NodeProcess:
    return _NodeProcess(1, tmp_path / "node-1", 1.0, (), ignore_change)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_process_that_is_restarted_during_stop_is_stopped(
    node: _NodeProcess, launched: Launched, *, is_cancelled: bool
) -> None:
    await node.launch()
    node.begin_restarts()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.supervise)
        launched.processes[0].kill()
        await until(lambda: launched.is_launching)
        node.prepare_stop()
        if is_cancelled:
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await node.stop()
        nursery.cancel_scope.cancel()
    assert [each.returncode for each in launched.processes] == [-9, 0]


async def test_commands_can_be_sent_at_the_same_time(
    node: _NodeProcess, launched: Launched
) -> None:
    """One task starts a process again, and another one chooses it for the HTTP address."""
    await node.launch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.send_command, SERVE_HTTP)
        nursery.start_soon(node.send_command, BEGIN)
    stdout = launched.processes[0].stdout
    assert stdout is not None
    assert sorted((await stdout.receive_some()).split()) == sorted([SERVE_HTTP, BEGIN])
    await node.stop()


async def test_process_that_ends_while_others_start_fails_the_start(
    node: _NodeProcess, launched: Launched
) -> None:
    """It is not restarted, so the server must not start without it."""
    await node.launch()
    launched.processes[0].kill()
    await node.supervise()
    with pytest.raises(StartFailed, match="node 1 exited with status -9"):
        node.begin_restarts()


async def test_node_that_fails_to_stop_does_not_keep_others_running(
    tmp_path: Path, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise OSError("cannot stop")

    async with trio.open_nursery() as nursery:
        supervisor = _Supervisor(
            ServeOptions(),
            [1, 2, 3],
            BootstrapListeners([]),
            SharedHttp({}, [], [], ("", "")),
            50,
            tmp_path,
            nursery,
        )
        for node in supervisor._nodes:
            await node.launch()
        monkeypatch.setattr(supervisor._nodes[0], "stop", fail)
        with pytest.raises(OSError, match="cannot stop"):
            await supervisor.stop()
    monkeypatch.undo()
    statuses = [each.returncode for each in launched.processes]
    await supervisor._nodes[0].stop()
    assert statuses == [None, 0, 0]
