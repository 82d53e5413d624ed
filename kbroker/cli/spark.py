"""The `kbroker spark` command: Spark's Kafka connector, and diagnosis of a Spark installation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import click

from .lazy import CommandGroup
from .output import say


@click.group(cls=CommandGroup)
def spark() -> None:
    """Find Spark's Kafka connector, and diagnose a Spark installation."""


@spark.command()
@click.option("--submit", "form", flag_value="submit", help="Print options for spark-submit.")
@click.option("--conf", "form", flag_value="conf", help="Print a line for spark-defaults.conf.")
@click.option(
    "--jars-dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Download the four jars into this directory instead, for KBROKER_SPARK_JARS.",
)
def packages(form: str | None, directory: Path | None) -> None:
    """Print the Maven coordinates of the Kafka connector for the installed PySpark.

    If KBROKER_SPARK_JARS names a directory, --submit and --conf print the jars in it.
    """
    from kbroker.spark import connector, jars

    try:
        pyspark = connector.installed()
        if directory is not None:
            for note in jars.gather(pyspark, directory):
                say(note, err=True)
            say(f"export {connector.JARS_VARIABLE}={directory.resolve()}")
        elif form is None:
            say(pyspark.package)
        else:
            ((name, value),) = connector.connector_settings().items()
            option = name.removeprefix("spark.jars.").removeprefix("spark.")
            say(f"--{option} {value}" if form == "submit" else f"{name}={value}")
    except connector.ConnectorError as error:
        raise click.ClickException(str(error)) from error


@spark.command()
@click.argument("log", type=click.File(encoding="utf-8", errors="replace"), required=False)
def doctor(log: TextIO | None) -> None:
    """Check Java, jars, interpreter and network for Spark, and explain the failures in LOG.

    LOG is the output of Spark or of a job; "-" means standard input. Exit status 1 if there is a
    problem.
    """
    from kbroker.spark import doctor as checks

    is_ok = True
    if log is not None:
        text, explained = checks.explanation(log)
        say(*text.split("\n"), "")
        is_ok = explained
    for result in checks.run():
        say(*str(result).split("\n"))
        is_ok = is_ok and not result.wrong
    sys.exit(0 if is_ok else 1)
