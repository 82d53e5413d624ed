"""A command that runs beside a broker of its own: `kbroker run`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import trio

from .broker import open_broker
from .declared import declare_topics, write_seed
from .server import Listener
from .serving import ServeOptions, load_config
from .topics import NewTopic

ADDRESS_VARIABLES = ("KAFKA_BOOTSTRAP_SERVERS", "BOOTSTRAP_SERVERS", "KBROKER_BOOTSTRAP")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class RunOptions:
    """What the command line of `kbroker run` says; `data_dir` None keeps all in memory."""

    command: Sequence[str]
    topics: list[NewTopic] = field(default_factory=list)
    seeds: Sequence[str] = ()
    variables: Sequence[str] = ()
    overrides: dict[str, str] = field(default_factory=dict)
    data_dir: str | None = None


def run_command(options: RunOptions) -> int:
    """Run a command while a broker runs; returns its exit code, 128 + n after signal n.

    Raises StartFailed, ConfigError, or OSError when the command cannot be started.
    """
    return trio.run(_run, options, strict_exception_groups=True)


async def _run(options: RunOptions) -> int:
    config = load_config(ServeOptions(overrides=options.overrides))
    listener = Listener("PLAINTEXT", "127.0.0.1", 0)
    async with open_broker(config, data_dir=options.data_dir, listeners=[listener]) as broker:
        await declare_topics(broker, options.topics)
        for path in options.seeds:
            await write_seed(broker, path)
        names = (*ADDRESS_VARIABLES, *options.variables)
        environment = os.environ | dict.fromkeys(names, broker.bootstrap_servers)
        return await _run_child(options.command, environment)


async def _run_child(command: Sequence[str], environment: dict[str, str]) -> int:
    with trio.open_signal_receiver(*PASSED_ON) as signals:
        process = await trio.lowlevel.open_process(command, env=environment)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, signals, process)
            status = await process.wait()
            nursery.cancel_scope.cancel()
    return status if status >= 0 else 128 - status


async def _pass_on(signals: AsyncIterator[int], process: trio.Process) -> None:
    async for number in signals:
        # Ctrl+C on a terminal reaches the command by itself.
        if number != signal.SIGINT or not sys.stdin.isatty():
            process.send_signal(number)
