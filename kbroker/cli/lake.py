"""The ``kbroker lake`` command: archives topics to Parquet files, and works on the archive."""

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

from .lazy import CommandGroup
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


@click.group(cls=CommandGroup)
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
    help="Format of the record values.",
)
@click.option(
    "--schema",
    metavar="DDL|FILE|URL",
    help="json: the fields, such as 'id bigint, name string', or a file with them (default: "
    "inferred from the values). avro: a schema file, a directory of <number>.avsc files, or "
    "the URL of a schema registry (default: schema.registry.url of the profile). protobuf: "
    "the URL of a schema registry (default: as for avro).",
)
@click.option("--once", is_flag=True, help="Archive the records that exist now, then exit.")
@click.option(
    "--every", type=float, default=10, show_default=True, metavar="SECONDS",
    help="Minimum interval between the starts of two batches.",
)  # fmt: skip
@click.option(
    "--batch", "batch_rows", type=click.IntRange(min=1), default=1_000_000, show_default=True,
    metavar="RECORDS", help="Maximum number of records in a batch.",
)  # fmt: skip
@click.option(
    "--source", type=click.Choice(["auto", "kafka", "kbroker"]), default="auto", show_default=True,
    help="kafka: Spark's Kafka connector. kbroker: a source that needs no jar. auto: the connector "
        "if it can be downloaded, otherwise kbroker.",
)  # fmt: skip
@click.option(
    "--uncommitted", is_flag=True, help="Also archive records of open and aborted transactions."
)
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Continue if records were deleted from the topic before they were archived.",
)
@click.option(
    "--merge-every", type=click.IntRange(min=0), default=50, show_default=True, metavar="BATCHES",
    help="Merge small files after this number of batches; 0 disables merging.",
)  # fmt: skip
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE",
    help="Set an option of Spark's source, such as kafka.security.protocol=SSL; can be given "
        "several times.",
)  # fmt: skip
@click.option("--memory", default="1g", show_default=True, help="Heap size of Spark's JVM.")
@click.option("--json", "as_json", is_flag=True, help="Print events as NDJSON.")
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
    """Archive each TOPIC: a name, or a pattern such as 'orders-*'.

    Runs until Ctrl+C, or with --once until all records are archived. The command can be killed and
    restarted at any time without losing or duplicating records. While no broker responds, it waits.
    """
    more["schema"] = _schema(more["schema"], more["value_format"], target.settings)
    source_options = _security_options(target.settings) | _source_options(options)
    with _lake_errors():
        from kbroker.pipelines.lake.archiver import Conf

        conf = Conf(
            lake=directory,
            topic="",
            isolation="read_uncommitted" if uncommitted else "read_committed",
            bootstrap=target.settings[BROKERS],
            options=source_options,
            **_conf_arguments(more),
        )
        _archive(conf, topics, memory, _EventPrinter(as_json))


def _archive(conf: Conf, topics: tuple[str, ...], memory: str, printer: _EventPrinter) -> None:
    from kbroker.pipelines.lake.running import Runner

    def make_session() -> tuple[SparkSession, str]:
        spark, source = _session_with(conf.source, {"spark.driver.memory": memory}, printer)
        spark.sparkContext.setLogLevel("OFF")  # the runner reports failures
        stack.callback(end, spark)
        stop_on_signals()  # Spark has replaced the handler of SIGINT
        return spark, source

    def end(spark: SparkSession) -> None:
        # If a signal was sent to all processes of a service, the JVM has already exited.
        with contextlib.suppress(Exception):
            spark.stop()

    def stop_on_signals() -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: runner.stop())

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # the runner reports failures
    runner = Runner(make_session, conf, topics, printer.event)
    stop_on_signals()
    with contextlib.ExitStack() as stack:
        printer.end(runner.run(), conf.lake)


def _session_with(
    source: str, settings: dict[str, str], printer: _EventPrinter
) -> tuple[SparkSession, str]:
    """Return a Spark session and its source; "auto" falls back to the kbroker source."""
    from kbroker.spark import session
    from kbroker.spark.connector import NoConnectorError, installed

    name, needs_no_connector = "kbroker lake", source == "kbroker"
    try:
        spark = session(name, connector=not needs_no_connector, settings=settings)
        return spark, "kbroker" if needs_no_connector else "kafka"
    except NoConnectorError:
        pyspark = installed()
        if source != "auto" or not pyspark.limits_python_sources:
            raise
        printer.event("no_connector", {"package": pyspark.package})
        return session(name, connector=False, settings=settings), "kbroker"


@lake.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--from", "files_min", type=click.IntRange(min=2), default=2, show_default=True,
    metavar="FILES", help="Minimum number of small files in a directory to merge them.",
)  # fmt: skip
def merge(directory: Path, topics: tuple[str, ...], files_min: int) -> None:
    """Merge the small files of each hour. The archiver must not run on these topics."""
    with _lake_errors():
        from kbroker.pipelines.lake.commits import Commits
        from kbroker.pipelines.lake.locking import topic_lock
        from kbroker.pipelines.lake.merging import Merges

        for topic in _selected_topics(directory, topics):
            with topic_lock(directory, topic):
                Commits(directory, topic)
                before, after = Merges(directory, topic).run(files_min)
            say(f"{topic}: {before} small files became {after}")


@lake.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
def check(directory: Path, topics: tuple[str, ...]) -> None:
    """Check the archive for damaged, duplicate, misplaced or missing records; exit status 1 if any."""
    has_problems = False
    with _lake_errors():
        from kbroker.pipelines.lake.checking import check as check_topic

        for topic in _selected_topics(directory, topics):
            found = check_topic(directory, topic)
            say(
                f"{topic}: {found.counts.records:,} records and {found.counts.poison:,} poison in "
                f"{found.files:,} files: {'problems found' if found.problems else 'ok'}"
            )
            for problem in found.problems:
                say(f"  {problem}")
            has_problems = has_problems or bool(found.problems)
    sys.exit(has_problems)


@lake.command(name="set-aside")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("topic")
def set_aside(directory: Path, topic: str) -> None:
    """Rename the archive of a deleted topic, so that a new topic of that name can be archived.

    The files move to TOPIC@ID, where ID is the topic ID of the deleted topic.
    """
    with _lake_errors():
        from kbroker.pipelines.lake.settings import set_aside as move

        say(f"moved {directory / topic} to {move(directory, topic)}")


class _EventPrinter:
    """Printer of archiver events: text, or one JSON object per line."""

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
            say(f"{time.strftime('%H:%M:%S')} {_EVENT_TEXTS[name].format(**what)}")

    def end(self, counts: dict[str, Counts], directory: Path) -> None:
        """Print the totals."""
        for topic, each in counts.items():
            if self._as_json:
                totals = {"topic": topic, "records": each.records, "poison": each.poison}
                say(json.dumps({"event": "ended", **totals}))
                continue
            say(f"archived {each.records:,} records of {topic} in {directory / topic}")
            if each.poison:
                say(f"{each.poison:,} unreadable records in {directory / '_poison' / topic}")


_EVENT_TEXTS = {
    "no_connector": "cannot download {package} (run `kbroker spark doctor` for details); archiving "
    "with --source kbroker, which needs no jar",
    "waiting": "waiting for a broker: {why}",
    "again": "{topic}: lost the connection to the broker; resuming after the last batch",
    "back": "the broker responds again after {seconds} s",
    "started": "{topic}: {records:,} records are already in the lake",
}


@contextlib.contextmanager
def _lake_errors() -> Iterator[None]:
    """Exit with a message on errors of the lake, Spark or its connector."""
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


def _selected_topics(directory: Path, topics: tuple[str, ...]) -> list[str]:
    from kbroker.pipelines.lake.layout import topics as topics_of
    from kbroker.pipelines.lake.running import select_topics

    return select_topics(directory, topics, topics_of(directory))


def _source_options(texts: tuple[str, ...]) -> dict[str, str]:
    try:
        return parse_pairs(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--option") from None


def _security_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the TLS and SASL settings of a profile, or `-X`, as options of Spark's source.

    The store types are added, because Java does not detect them.
    """
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
    """Return --schema, or else the schema registry URL of a profile, or `-X`."""
    takes_registry = value_format in ("avro", "protobuf")
    return registry_of(settings, given, "--schema") if takes_registry else given


def _conf_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options under the names of `Conf`."""
    names = {"value_format": "format", "every": "every_seconds"}
    return {names.get(name, name): value for name, value in given.items()}
