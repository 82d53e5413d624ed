"""The ``kbroker demo`` command: a real data set through producer, broker and Spark, verified."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click

from kbroker.demo import DemoError, StartError

from .output import say

_FAILED, _NOT_STARTED = 1, 3


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("kbroker-demo"),
    show_default=True,
    help="Work directory; files of an earlier demo in it are replaced.",
)
@click.option(
    "--against",
    metavar="HOST:PORT",
    help="Use the Kafka cluster at this address instead of starting a broker.",
)
@click.option(
    "--interrupt",
    is_flag=True,
    help="Kill Spark and the broker with SIGKILL half way through, and recover.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1, max=336_776),
    default=336_776,
    show_default=True,
    help="Number of departures to use.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the broker running at the end; with --against, keep the topics.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Run nothing; verify the results of an earlier run in --dir again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo(
    directory: Path,
    against: str | None,
    interrupt: bool,
    rows: int,
    keep: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Stream a year of flights through the broker and Spark, and verify the results.

    A producer writes 336,776 departures from New York's airports in 2013 to a broker. A Spark
    streaming job joins them with the weather and computes delay statistics. The command then reads
    everything back and compares it with the same statistics computed in plain Python. Exit status 1
    if anything differs.
    """
    from kbroker.demo import run

    # Exit like on Ctrl+C, so that the broker, the producer and Spark are stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = run.Options(directory, against, rows, interrupt, keep)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        task = run.Demo(options, nowhere if as_json else sys.stdout)
        try:
            passed = task.check_again() if check else task.run()
        except DemoError as error:
            say(f"kbroker demo: {error}", err=True)
            sys.exit(_NOT_STARTED if isinstance(error, StartError) else _FAILED)
        except KeyboardInterrupt:
            say("", "kbroker demo: stopped", err=True)
            sys.exit(130)
    if as_json:
        say(run.as_json(task.summary))
    sys.exit(0 if passed else _FAILED)
