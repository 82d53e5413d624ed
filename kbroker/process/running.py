"""`kbroker run`: a command with a temporary broker."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import trio

from kbroker.broker import Broker, open_broker
from kbroker.cluster.topics import NewTopic
from kbroker.net.server import Listener

from .bootstrap_topics import create_bootstrap_topics
from .listeners import configured_listeners
from .options import ServeOptions
from .serving import load_config

ADDRESS_VARIABLES = ("KAFKA_BOOTSTRAP_SERVERS", "BOOTSTRAP_SERVERS", "KBROKER_BOOTSTRAP")
CONTROL_VARIABLE = "KBROKER_CONTROL"
TOKEN_FILE_VARIABLE = "KBROKER_CONTROL_TOKEN_FILE"
# Seconds for which a command may run after its broker has failed.
TERMINATE_SECONDS = 5
FORWARDED_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@dataclass(slots=True)
class RunOptions:
    """Command-line options of `kbroker run`.

    If `data_dir` is None, data is kept in memory, or with `processes` in a temporary directory.
    """

    command: Sequence[str]
    topics: list[NewTopic] = field(default_factory=list)
    seeds: Sequence[str] = ()
    variables: Sequence[str] = ()
    overrides: dict[str, str] = field(default_factory=dict)
    data_dir: str | None = None
    control: bool = False
    disk: bool = False
    processes: int | None = None


def run_command(options: RunOptions) -> int:
    """Run a command while a broker is running.

    Returns:
        The exit code of the command, 128 + n after signal n.

    Raises:
        StartFailed: The broker cannot start.
        ConfigError: A setting is invalid.
        OSError: The command cannot be started.
    """
    return trio.run(_run, options, strict_exception_groups=True)


async def _run(options: RunOptions) -> int:
    async with _opener_of(options)(options) as (address, more):
        names = (*ADDRESS_VARIABLES, *options.variables)
        environment = os.environ | dict.fromkeys(names, address) | more
        return await _run_child(options.command, environment)


# Address of a broker, and additional environment variables.
Opened = tuple[str, dict[str, str]]


def _opener_of(options: RunOptions) -> Callable[[RunOptions], AbstractAsyncContextManager[Opened]]:
    if options.processes is not None:
        return _open_processes
    return _open_controlled if options.control else _open_plain


@asynccontextmanager
async def _open_plain(options: RunOptions) -> AsyncIterator[Opened]:
    config = load_config(ServeOptions(overrides=options.overrides))
    listener = Listener("PLAINTEXT", "localhost", 0)
    async with open_broker(config, data_dir=options.data_dir, listeners=[listener]) as broker:
        await create_bootstrap_topics(broker, options.topics, options.seeds)
        yield broker.bootstrap_servers, {}


@asynccontextmanager
async def _open_processes(options: RunOptions) -> AsyncIterator[Opened]:
    """Run a node in each of several processes; without `data_dir`, in a temporary directory."""
    from .supervising import supervised

    with ExitStack() as stack:
        overrides = options.overrides
        data_dir = options.data_dir
        if data_dir is None:
            data_dir = stack.enter_context(TemporaryDirectory(prefix="kbroker-run-"))
            overrides = {"flush.policy": "os", **overrides}  # the data ends with the command
        serve = ServeOptions(
            host="localhost",
            port=0,
            data_dir=data_dir,
            overrides=overrides,
            processes=options.processes,
            topics=options.topics,
            seeds=options.seeds,
            log_levels=("warning",),
        )
        config = load_config(serve)
        listeners = configured_listeners(config)
        async with supervised(serve, config, listeners) as (_, shared):
            yield str(shared.listeners[0].local), {}


@asynccontextmanager
async def _open_controlled(options: RunOptions) -> AsyncIterator[Opened]:
    """Run a broker with a control port, and yield it with the variables of its address."""
    from kbroker.testing.control import run_controlled_broker

    async def prepare(broker: Broker) -> None:
        await create_bootstrap_topics(broker, options.topics, options.seeds)

    config = load_config(ServeOptions(overrides=options.overrides))
    settings = {"config": config, "data_dir": options.data_dir, "disk": options.disk}
    async with run_controlled_broker(0, None, prepare, **settings) as (local, control):
        variables = {CONTROL_VARIABLE: control.address, TOKEN_FILE_VARIABLE: control.token_file}
        yield local.running.broker.bootstrap_servers, variables


async def _run_child(command: Sequence[str], environment: dict[str, str]) -> int:
    with trio.open_signal_receiver(*FORWARDED_SIGNALS) as signals:
        process = await trio.lowlevel.open_process(command, env=environment)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_forward_signals, signals, process)
                status = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            await _end(process)
    return status if status >= 0 else 128 - status


async def _end(process: trio.Process) -> None:
    """End the command if it runs, because the broker has failed."""
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            process.terminate()
            with trio.move_on_after(TERMINATE_SECONDS):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _forward_signals(signals: AsyncIterator[int], process: trio.Process) -> None:
    async for number in signals:
        # The terminal sends Ctrl+C to the command too.
        if number != signal.SIGINT or not sys.stdin.isatty():
            process.send_signal(number)
