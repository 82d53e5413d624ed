"""The `kbroker run` command: runs a command with a temporary broker, for test suites and scripts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .declared_options import declared_options
from .output import say
from .setting_completion import complete_broker_settings
from .settings import parse_broker_settings

if TYPE_CHECKING:
    from kbroker.cluster.topics import NewTopic

NODES_MAX = 100
_NOT_STARTED, _NOT_FOUND = 3, 127


@click.command(context_settings={"ignore_unknown_options": True})
@declared_options
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME",
    help="Set one more environment variable to the broker's address; can be given several times.",
)
@click.option(
    "-o",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_broker_settings,
    help="Set a Kafka or kbroker setting; can be given several times.",
)
@click.option(
    "--control",
    is_flag=True,
    help="Open a control port for tests; its address is in KBROKER_CONTROL, its token file in "
    "KBROKER_CONTROL_TOKEN_FILE.",
)
@click.option(
    "--faulty-disk",
    "disk",
    is_flag=True,
    help="With --control: keep data on an in-memory disk in which commands can inject faults.",
)
@click.option(
    "--processes",
    type=click.IntRange(2, NODES_MAX),
    help="Run this number of nodes, each in its own process, to use several CPU cores. The data is in "
    "a temporary directory.",
)
@click.option("--keep", is_flag=True, help="Store the data in a new directory, and keep it.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    command: Sequence[str],
    topics: list[NewTopic],
    seeds: tuple[str, ...],
    variables: tuple[str, ...],
    overrides: tuple[str, ...],
    control: bool,
    disk: bool,
    processes: int | None,
    keep: bool,
) -> None:
    """Run COMMAND with a broker that stops when COMMAND ends.

    Example: kbroker run -- pytest -q

    The broker keeps everything in memory and listens on a free port. Its address is in
    KAFKA_BOOTSTRAP_SERVERS, BOOTSTRAP_SERVERS and KBROKER_BOOTSTRAP. Signals are forwarded to
    COMMAND, and its exit status is returned.
    """
    _reject_unknown_option(command[0])
    if disk and (keep or not control):
        raise click.UsageError("--faulty-disk needs --control, and excludes --keep")
    if processes is not None and control:
        raise click.UsageError("--processes and --control exclude each other")
    from kbroker.client.errors import first_error
    from kbroker.config import ConfigError
    from kbroker.process.errors import StartFailed
    from kbroker.process.running import RunOptions, run_command

    properties = parse_broker_settings(overrides)  # rejects invalid ones before a directory exists
    data_dir = tempfile.mkdtemp(prefix="kbroker-run-") if keep else None
    options = RunOptions(
        command=command,
        topics=topics,
        seeds=seeds,
        variables=variables,
        overrides=properties,
        data_dir=data_dir,
        control=control,
        disk=disk,
        processes=processes,
    )
    status = _NOT_STARTED
    try:
        status = run_command(options)
    except* (StartFailed, ConfigError) as group:
        say(f"kbroker: {first_error(group)}", err=True)
    except* OSError as group:
        say(f"kbroker: {_not_run(options.command[0], first_error(group))}", err=True)
        status = _NOT_FOUND
    finally:
        if data_dir is not None:
            say(f"kbroker: the data is in {data_dir}", err=True)
    sys.exit(status)


def _not_run(command: str, error: BaseException) -> str:
    """Return the message for a command that cannot be started."""
    message = f"cannot run {command}: {error}"
    if command.endswith(".py") and Path(command).is_file():
        message += f"; run a script with its interpreter: `kbroker run -- python {command}`"
    return message


def _reject_unknown_option(word: str) -> None:
    """Reject a command that begins like an option: click passes unknown options on as words."""
    if not word.startswith("-"):
        return
    name = word.partition("=")[0]
    context = click.get_current_context()
    known = [option for each in context.command.get_params(context) for option in each.opts]
    raise click.NoSuchOption(name, possibilities=get_close_matches(name, known), ctx=context)
