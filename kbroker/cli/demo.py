"""``kbroker demo``: the whole way of a real data set, checked."""

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
    help="Work directory; what an earlier demo left in it is replaced.",
)
@click.option("--against", metavar="HOST:PORT", help="Run on another Kafka, not on a kbroker.")
@click.option("--interrupt", is_flag=True, help="Kill Spark and the broker half way (SIGKILL).")
@click.option(
    "--rows",
    type=click.IntRange(min=1, max=336_776),
    default=336_776,
    show_default=True,
    help="Only the first so many departures.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="At the end leave the broker running; with --against leave the topics.",
)
@click.option("--check", is_flag=True, help="Run nothing: check again what a run left in --dir.")
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
    """Stream a year of flights through the broker and Spark, and check every figure.

    336,776 departures from New York's airports in 2013 go through a producer, a broker and a
    Spark streaming job that joins them with the weather and keeps delay figures. Then all of it is
    read back and compared with the same figures computed in plain Python. Exit status 1 when
    anything differs.
    """
    from kbroker.demo import run

    # As Ctrl+C does: the broker, the producer and Spark go too.
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
