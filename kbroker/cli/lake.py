"""``kbroker lake``: topics into Parquet files, and what can be done with those."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.text.pairs import parse_pairs

from .output import say
from .target import (
    BROKERS,
    SECURITY_SETTINGS,
    Target,
    fail,
    registry_of,
    target_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.pipelines.lake.archiver import Conf
    from kbroker.pipelines.lake.commits import Counts


@click.group()
def lake() -> None:
    """Archive topics to Parquet files by date and hour, each record exactly once."""


@lake.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--format",
    "value_format",
    type=click.Choice(["json", "raw", "avro", "protobuf"]),
    default="json",
    show_default=True,
    help="What the values are.",
)
@click.option(
    "--schema",
    metavar="DDL|FILE|URL",
    help="json: the fields, such as 'id bigint, name string', or a file with them (default: found "
    "in the values). avro: a schema file, a directory of <number>.avsc, or a registry's address "
    "(default: schema.registry.url of the profile). protobuf: a registry's address (default: the same).",
)
@click.option("--once", is_flag=True, help="End when all that is there now is archived.")
@click.option(
    "--every", type=float, default=10, show_default=True, metavar="SECONDS",
    help="How often a batch begins, at most.",
)  # fmt: skip
@click.option(
    "--batch", "batch_rows", type=click.IntRange(min=1), default=1_000_000, show_default=True,
    metavar="RECORDS", help="The most records in one batch.",
)  # fmt: skip
@click.option(
    "--source", type=click.Choice(["auto", "kafka", "kbroker"]), default="auto", show_default=True,
    help="kafka: Spark's connector. kbroker: the source that needs no jar. auto: the connector if "
    "the Java registry delivers it, else the other one.",
)  # fmt: skip
@click.option(
    "--uncommitted", is_flag=True, help="Archive records of open and aborted transactions too."
)
@click.option(
    "--allow-loss", is_flag=True, help="Go on when records were deleted before they were read."
)
@click.option(
    "--merge-every", type=click.IntRange(min=0), default=50, show_default=True, metavar="BATCHES",
    help="Merge small files after so many batches; 0 never does.",
)  # fmt: skip
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE",
    help="An option for Spark's source, such as kafka.security.protocol=SSL.",
)  # fmt: skip
@click.option("--memory", default="1g", show_default=True, help="For Spark's JVM.")
@click.option("--json", "as_json", is_flag=True, help="Print events, one line of JSON for each.")
@target_options
def archive(
    target: Target,
    directory: Path,
    topics: tuple[str, ...],
    options: tuple[str, ...],
    uncommitted: bool,
    memory: str,
    as_json: bool,
    **more: Any,
) -> None:
    """Archive topics; names, or patterns such as 'orders-*'.

    Goes on until Ctrl+C, or ends by itself with --once. Can be killed at any moment and started
    again: no record is lost or doubled. While no broker answers it waits.
    """
    more["schema"] = _schema(more["schema"], more["value_format"], target.settings)
    source_options = _security_options(target.settings) | _parsed_options(options)
    with _lake_errors():
        from kbroker.pipelines.lake.archiver import Conf

        conf = Conf(
            lake=directory,
            topic="",
            isolation="read_uncommitted" if uncommitted else "read_committed",
            bootstrap=target.settings[BROKERS],
            options=source_options,
            **_renamed(more),
        )
        _archive(conf, topics, memory, _Told(as_json))


def _archive(conf: Conf, topics: tuple[str, ...], memory: str, told: _Told) -> None:
    from kbroker.pipelines.lake.running import Runner

    def make_session() -> tuple[SparkSession, str]:
        made, source = _session_with(conf.source, {"spark.driver.memory": memory}, told)
        made.sparkContext.setLogLevel("OFF")  # what fails is told by the runner
        stack.callback(end, made)
        stop_on_signals()  # Spark has taken Ctrl+C for itself
        return made, source

    def end(made: SparkSession) -> None:
        # A signal to all processes of a service has ended the JVM already.
        with contextlib.suppress(Exception):
            made.stop()

    def stop_on_signals() -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: runner.stop())

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what fails is told by the runner
    runner = Runner(make_session, conf, topics, told.event)
    stop_on_signals()
    with contextlib.ExitStack() as stack:
        told.end(runner.run(), conf.lake)


def _session_with(source: str, settings: dict[str, str], told: _Told) -> tuple[SparkSession, str]:
    """A session for a source, and which one: where no connector is to be had, "auto" takes ours."""
    from kbroker.spark import session
    from kbroker.spark.connector import NoConnectorError, installed

    name, jarless = "kbroker lake", source == "kbroker"
    try:
        made = session(name, connector=not jarless, settings=settings)
        return made, "kbroker" if jarless else "kafka"
    except NoConnectorError:
        pyspark = installed()
        if source != "auto" or not pyspark.limits_python_sources:
            raise
        told.event("no_connector", {"package": pyspark.package})
        return session(name, connector=False, settings=settings), "kbroker"


@lake.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--from", "files_min", type=click.IntRange(min=2), default=2, show_default=True,
    metavar="FILES", help="Merge where so many small files lie side by side.",
)  # fmt: skip
def merge(directory: Path, topics: tuple[str, ...], files_min: int) -> None:
    """Merge the small files of each hour. The archiver must not run on these topics."""
    with _lake_errors():
        from kbroker.pipelines.lake.commits import Commits
        from kbroker.pipelines.lake.locking import topic_lock
        from kbroker.pipelines.lake.merging import Merges

        for topic in _topics_of(directory, topics):
            with topic_lock(directory, topic):
                Commits(directory, topic)
                before, after = Merges(directory, topic).run(files_min)
            say(f"{topic}: {before} small files became {after}")


@lake.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
def check(directory: Path, topics: tuple[str, ...]) -> None:
    """Check that nothing is torn, doubled, misplaced or missing; exit status 1 if it is."""
    wrong = False
    with _lake_errors():
        from kbroker.pipelines.lake.checking import check as check_topic

        for topic in _topics_of(directory, topics):
            found = check_topic(directory, topic)
            say(
                f"{topic}: {found.counts.records:,} records and {found.counts.poison:,} poison in "
                f"{found.files:,} files: {'wrong' if found.problems else 'right'}"
            )
            for problem in found.problems:
                say(f"  {problem}")
            wrong = wrong or bool(found.problems)
    sys.exit(wrong)


@lake.command(name="set-aside")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("topic")
def set_aside(directory: Path, topic: str) -> None:
    """Keep the files of a topic that was deleted, so that a new one of its name can be archived.

    They go to TOPIC@ID, where ID is the old topic's.
    """
    with _lake_errors():
        from kbroker.pipelines.lake.settings import set_aside as move

        say(f"{directory / topic} is {move(directory, topic)} now")


class _Told:
    """Prints what happens: lines for people, or one line of JSON for each event."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()
        self._poison = 0

    def event(self, name: str, what: dict[str, Any]) -> None:
        """Print one event."""
        if self._as_json:
            say(json.dumps({"event": name, **what}))
        elif name == "batch":
            self._poison += what["poison"]
            lag = "?" if what["lag"] is None else f"{what['lag']:,}"
            say(
                f"{time.strftime('%H:%M:%S')} {what['topic']}: {what['records']:,} records, "
                f"{what['rows_per_second']:,}/s, lag {lag}, poison {self._poison:,}"
            )
        else:
            say(f"{time.strftime('%H:%M:%S')} {_SAID[name].format(**what)}")

    def end(self, counts: dict[str, Counts], directory: Path) -> None:
        """Print what has been done."""
        for topic, each in counts.items():
            if self._as_json:
                said = {"topic": topic, "records": each.records, "poison": each.poison}
                say(json.dumps({"event": "ended", **said}))
                continue
            say(f"{each.records:,} records of {topic} are new in {directory / topic}")
            if each.poison:
                say(f"{each.poison:,} could not be read: {directory / '_poison' / topic}")


_SAID = {
    "no_connector": "the Java registry does not deliver {package} (kbroker spark doctor says more): "
    "archiving with --source kbroker, which needs no jar",
    "waiting": "waiting for a broker: {why}",
    "again": "{topic}: the broker went away, going on where the last batch ended",
    "back": "the broker is back after {seconds} s",
    "started": "{topic}: {records:,} records are in the lake already",
}


@contextlib.contextmanager
def _lake_errors() -> Iterator[None]:
    """End the process with a message when the lake cannot be worked on."""
    try:
        from kbroker.pipelines.lake.commits import LakeError
        from kbroker.security.errors import BadSettings
        from kbroker.spark.connector import ConnectorError
        from kbroker.spark.source.options import OptionError
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: pip install 'kbroker[spark]'")
    try:
        yield
    except (LakeError, ConnectorError, OptionError, BadSettings) as error:
        fail(str(error))


def _topics_of(directory: Path, topics: tuple[str, ...]) -> list[str]:
    from kbroker.pipelines.lake.layout import topics as topics_of
    from kbroker.pipelines.lake.running import select_topics

    return select_topics(directory, topics, topics_of(directory))


def _parsed_options(texts: tuple[str, ...]) -> dict[str, str]:
    try:
        return parse_pairs(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--option") from None


def _security_options(settings: Mapping[str, str]) -> dict[str, str]:
    """What a profile, or `-X`, says of security, for Spark's source. Java is told what its files are."""
    from kbroker.security.stores import PEM, type_of

    found = {name: value for name, value in settings.items() if name in SECURITY_SETTINGS}
    for kind in ("truststore", "keystore"):
        location, text = f"ssl.{kind}.location", f"ssl.{kind}.certificates"
        if location in found:
            found[f"ssl.{kind}.type"] = type_of(location, found[location])
        elif text in found or f"ssl.{kind}.key" in found:
            found[f"ssl.{kind}.type"] = PEM
    return {f"kafka.{name}": value for name, value in found.items()}


def _schema(given: str | None, value_format: str, settings: Mapping[str, str]) -> str | None:
    """What --schema says; without it, the address of the registry that a profile, or `-X`, names."""
    takes_registry = value_format in ("avro", "protobuf")
    return registry_of(settings, given) if takes_registry else given


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    """The options under the names of `Conf`."""
    names = {"value_format": "format", "every": "every_seconds"}
    return {names.get(name, name): value for name, value in given.items()}
