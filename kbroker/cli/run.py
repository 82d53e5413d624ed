"""`kbroker run`: a command with a broker of its own, for test suites and scripts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .declared_options import declared_options
from .output import say
from .settings import split_overrides

if TYPE_CHECKING:
    from kbroker.cluster.topics import NewTopic

_NOT_STARTED, _NOT_FOUND = 3, 127


@click.command(context_settings={"ignore_unknown_options": True})
@declared_options
@click.option("--env", "variables", multiple=True, metavar="NAME", help="One more variable.")
@click.option("-o", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a property.")
@click.option(
    "--control",
    is_flag=True,
    help="Take commands of tests at KBROKER_CONTROL, with the token of KBROKER_CONTROL_TOKEN_FILE.",
)
@click.option(
    "--faulty-disk",
    "disk",
    is_flag=True,
    help="With --control: a disk in memory that commands can break.",
)
@click.option("--keep", is_flag=True, help="Write to a directory, and leave it there.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    command: Sequence[str],
    topics: list[NewTopic],
    seeds: tuple[str, ...],
    variables: tuple[str, ...],
    overrides: tuple[str, ...],
    control: bool,
    disk: bool,
    keep: bool,
) -> None:
    """Run COMMAND beside a broker that lives as long: kbroker run -- pytest -q

    The broker keeps everything in memory and listens on a free port, whose address is in
    KAFKA_BOOTSTRAP_SERVERS, BOOTSTRAP_SERVERS and KBROKER_BOOTSTRAP. Signals are passed on; the
    exit status is that of COMMAND.
    """
    if disk and (keep or not control):
        raise click.UsageError("--faulty-disk goes with --control, and not with --keep")
    from kbroker.client.errors import first_error
    from kbroker.config import ConfigError
    from kbroker.process.errors import StartFailed
    from kbroker.process.running import RunOptions, run_command

    data_dir = tempfile.mkdtemp(prefix="kbroker-run-") if keep else None
    options = RunOptions(
        command=command,
        topics=topics,
        seeds=seeds,
        variables=variables,
        overrides=split_overrides(overrides),
        data_dir=data_dir,
        control=control,
        disk=disk,
    )
    status = _NOT_STARTED
    try:
        status = run_command(options)
    except* (StartFailed, ConfigError) as group:
        say(f"kbroker: {first_error(group)}", err=True)
    except* OSError as group:
        say(f"kbroker: {options.command[0]} cannot be run: {first_error(group)}", err=True)
        status = _NOT_FOUND
    if data_dir is not None:
        say(f"kbroker: the data is in {data_dir}", err=True)
    sys.exit(status)
