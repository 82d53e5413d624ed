"""The `kbroker replay` command: writes records again from a topic, NDJSON or a lake."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.text.durations import parse_duration
from kbroker.text.times import iso_time

from .completion import complete_topics
from .filters import chosen_selection, filter_options, report_too_large
from .output import Column, Progress, format_options, say, show, table
from .produce import CODECS
from .schema_registries import registry_url
from .target import REGISTRY, Target, parse_addresses, run, target_options
from .units import ParamType

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.offset_spec import OffsetSpec
    from kbroker.pipelines.replay.job import ReplayRequest, ReplaySetup, WritingReplay
    from kbroker.pipelines.replay.pace import Pace
    from kbroker.pipelines.replay.replay import Replay
    from kbroker.pipelines.replay.values import LoadEncoder

# Options that determine the written records; a resumed run must have the same values.
WRITTEN = (
    "topic", "ndjson", "lake", "to_topic", "begin", "end", "partitions", "filter_key",
    "filter_value", "filter_header", "filter_field", "where", "to_schema", "timestamps", "partitioner", "committed",
)  # fmt: skip
COLUMNS = [
    Column("partition"), Column("records"), Column("bytes"), Column("first_time"),
    Column("last_time"),
]  # fmt: skip


class Speed(ParamType[float]):
    """A factor such as 2x or 0.5."""

    name = "factor"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        try:
            factor = float(str(value).removesuffix("x"))
        except ValueError:
            factor = 0
        if not 0 < factor < float("inf"):
            self.fail(f"invalid factor {value!r}; expected one such as 2x or 0.5", param, context)
        return factor


@click.command(
    epilog="""
OFFSET is start, end, 47, +3 (after the start), -2 (before the end) or @TIME; --to is the offset
to stop before. TIME is ms, s, a date, RFC 3339 or a duration from now such as -2h.
"""
)
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--to-topic", required=True, metavar="NAME", help="Topic to write to.")
@click.option(
    "--to-bootstrap",
    metavar="HOST:PORT",
    help="Cluster to write to.  [default: the cluster of --bootstrap]",
)
@click.option(
    "--ndjson",
    type=click.File("rb", lazy=False),
    help="Read NDJSON in the format of `kbroker topic consume`; - means standard input.",
)
@click.option(
    "--lake",
    type=click.Path(exists=True, file_okay=False),
    help="Read the lake in this directory, written by `kbroker lake`.",
)
@click.option(
    "--from",
    "begin",
    default="start",
    show_default=True,
    metavar="OFFSET",
    help="Offset at which to start.",
)
@click.option(
    "--to",
    "end",
    default="end",
    show_default=True,
    metavar="OFFSET",
    help="Offset before which to stop.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Read only this partition; can be given several times.",
)
@filter_options
@click.option(
    "--timestamps",
    default="original",
    show_default=True,
    metavar="original|now|SHIFT",
    help="Timestamps of the written records: original; now: shifted so that the first one is now; "
    "SHIFT: shifted by a duration such as -7d or +2h.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of records per second."
)
@click.option(
    "--speed",
    type=Speed(),
    metavar="2x",
    help="Write with the original time gaps, faster by this factor.",
)
@click.option(
    "--partitioner",
    "partitioner",
    type=click.Choice(["auto", "keep", "key"]),
    default="auto",
    show_default=True,
    help="keep: write to the original partition; key: select the partition by the key; auto: keep "
    "if both topics have the same number of partitions, otherwise key.",
)
@click.option(
    "--to-schema",
    metavar="SUBJECT",
    help="Encode JSON values with the latest schema of this subject: Avro, Protobuf or JSON Schema.",
)
@click.option(
    "--to-registry",
    metavar="URL",
    help="URL of the schema registry for --to-schema.  [default: schema.registry.url of the "
    "profile]",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="Compression codec of the written batches.",
)
@click.option(
    "--read-uncommitted",
    "committed",
    flag_value=False,
    default=True,
    help="Also read records of open and aborted transactions.",
)
@click.option(
    "--progress",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Store the progress in this file. If it exists, the same command resumes there and "
    "duplicates nothing.",
)
@click.option("--allow-same-topic", is_flag=True, help="Permit writing to the topic that is read.")
@click.option("--dry-run", is_flag=True, help="Only print what would be written.")
@target_options
@partial(format_options, short=False)
def replay(
    target: Target, output: str, dry_run: bool, to_bootstrap: str | None, **options: Any
) -> None:
    """Write the records of TOPIC, of NDJSON, or of a lake again.

    Keys, headers and the order within each partition are preserved. No consumer group is used.
    """
    if options["topic"] is None and options["ndjson"] is None:
        raise click.UsageError("name a topic, or a file with --ndjson FILE")
    if options["ndjson"] is not None and options["lake"] is not None:
        raise click.UsageError("--ndjson and --lake exclude each other")
    request = _request(options, target.settings)
    command = _Command(request, output, dry_run)
    to = None if to_bootstrap is None else parse_addresses(to_bootstrap, "--to-bootstrap")

    async def work(cluster: ClusterClient) -> int:
        if to is None:
            return await command.run(cluster, cluster)
        async with replace(target, bootstrap=to).connect() as to_cluster:
            return await command.run(cluster, to_cluster)

    try:
        status = run(target, work)
    finally:
        command.progress.clear()
    report_too_large(request.wanted)
    sys.exit(status)


def _request(options: dict[str, Any], settings: Mapping[str, str]) -> ReplayRequest:
    """Return the replay job that the options describe.

    Raises:
        BadParameter: An option is invalid.
        UsageError: Options cannot be combined.
    """
    from kbroker.pipelines.replay.job import ReplayRequest
    from kbroker.pipelines.replay.partitioners import PartitionerName
    from kbroker.protocol.compression import Codec

    now_ms = time.time_ns() // 1_000_000
    lines, given = options["ndjson"], {name: _as_json(options[name]) for name in WRITTEN}
    return ReplayRequest(
        to_topic=options["to_topic"],
        first=_offset_spec(options["begin"], now_ms, "--from"),
        last=_offset_spec(options["end"], now_ms, "--to"),
        pace=_pace(options["rate"], options["speed"]),
        topic=options["topic"],
        lines=lines,
        lines_name="the input" if lines is None else getattr(lines, "name", "the input"),
        lake=options["lake"],
        partitions=options["partitions"],
        wanted=chosen_selection(options),
        partitioner=PartitionerName(options["partitioner"]),
        shift_ms=_timestamp_shift(options["timestamps"]),
        load_encoder=_encoder_loader(options["to_schema"], options["to_registry"], settings),
        codec=Codec[options["compression"].upper()],
        committed=options["committed"],
        allow_same_topic=options["allow_same_topic"],
        progress=options["progress"],
        asked=given,
    )


def _as_json(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | bool | None) else str(getattr(value, "name", value))


def _encoder_loader(
    name: str | None, registry: str | None, settings: Mapping[str, str]
) -> LoadEncoder | None:
    """Return a function that loads the encoder of a subject, or None.

    Raises:
        BadParameter: The registry is not a URL.
        UsageError: An option is missing.
    """
    if name is None:
        if registry is not None:
            raise click.UsageError("--to-registry needs --to-schema SUBJECT")
        return None
    url = registry_url(settings, registry, "--to-registry")
    if url is None:
        raise click.UsageError(f"--to-schema needs --to-registry URL, or -X {REGISTRY}=URL")
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.schemas.encoding import SchemaChoice, load_writer

    return partial(load_writer, SchemaRegistry(url), SchemaChoice(subject=name))


def _offset_spec(text: str, now_ms: int, option: str) -> OffsetSpec:
    from .offsets import BadOffsetSpec, parse_offset_spec

    try:
        return parse_offset_spec(text, now_ms)
    except BadOffsetSpec as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _pace(rate: float | None, speed: float | None) -> Pace:
    from kbroker.pipelines.replay.pace import Rate, Speed, Unpaced

    if rate is not None and speed is not None:
        raise click.UsageError("--rate and --speed exclude each other")
    if rate is not None:
        return Rate(rate)
    return Unpaced() if speed is None else Speed(speed)


def _timestamp_shift(text: str) -> int | None:
    """Return the shift of timestamps in ms, or None to shift the first one to now."""
    if text in ("original", "now"):
        return 0 if text == "original" else None
    try:
        if text[:1] not in "+-":
            raise ValueError(f"invalid {text!r} (valid: original, now, a shift such as -7d or +2h)")
        return round(parse_duration(text[1:]) * 1000) * (-1 if text[0] == "-" else 1)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--timestamps") from None


class _Command:
    """One run of `kbroker replay`."""

    def __init__(self, request: ReplayRequest, output: str, dry_run: bool) -> None:
        self._request = request
        self._output = output
        self._dry_run = dry_run
        self.progress = Progress("records read" if dry_run else "records written")

    async def run(self, cluster: ClusterClient, to_cluster: ClusterClient) -> int:
        """Run the replay and return the exit status."""
        from kbroker.pipelines.replay.job import look_up
        from kbroker.pipelines.replay.journal import locked

        with locked(None if self._dry_run else self._request.progress):
            found = await look_up(self._request, cluster, to_cluster)
            self._warn_about_partitioning(found)
            if not self._dry_run:
                return await self._write(found, to_cluster)
            await self._preview(found)
            return 0

    def _warn_about_partitioning(self, found: ReplaySetup) -> None:
        """Print a note if records do not keep their partitions."""
        source, target, request = found.source, found.target, self._request
        if not target.partitions:
            return
        if found.keeps_partitions or source.partitions == target.partitions:
            return
        _print_note(
            f"{source.name} has {source.partitions} partitions, {target.topic} has "
            f"{target.partitions}: partitions are selected by the keys"
            if request.partitioner == "auto"
            else "partitions are selected by the keys"
        )

    async def _preview(self, found: ReplaySetup) -> None:
        from kbroker.pipelines.replay.job import dry_run
        from kbroker.pipelines.replay.target import missing

        dry_replay = dry_run(self._request, found, lambda: self._show(dry_replay, found))
        await dry_replay.run()
        self.progress.clear()
        show(self._output, _rows(dry_replay), partial(_table_lines, _rows(dry_replay)))
        tallies = dry_replay.tallies.values()
        first_ms = min((each.first_ms for each in tallies if each.first_ms is not None), default=0)
        latest_ms = max(
            (each.latest_ms for each in tallies if each.latest_ms is not None), default=0
        )
        seconds = self._request.pace.seconds(dry_replay.count, first_ms, latest_ms)
        takes = f", in {seconds:,.1f} s" if seconds else ""
        _print_note(
            f"{_totals_text(dry_replay)} would be written to {self._request.to_topic}{takes}"
        )
        if not found.target.partitions:
            _print_note(str(missing(found.target, found.source.partitions)))
        elif dry_replay.count:
            for remark in found.target.remarks(first_ms, time.time_ns() // 1_000_000):
                _print_note(remark)

    async def _write(self, found: ReplaySetup, to_cluster: ClusterClient) -> int:
        from kbroker.pipelines.replay.job import prepare

        writing = await prepare(
            self._request, found, to_cluster, lambda: self._show(writing.replay, found)
        )
        replay = writing.replay
        if writing.earlier:
            _print_note(f"resuming: {writing.earlier:,} records are already written")
        began_at = time.monotonic()
        try:
            async with _stoppable(replay) as signals:
                done = await replay.run()
            stopped_by = 0 if done else signals[0]
        except BaseException:
            self.progress.clear()
            self._print_how_to_resume(writing, is_certain=False)
            raise
        self.progress.clear()
        writing.save(finished=not stopped_by)
        seconds = time.monotonic() - began_at
        show(self._output, _rows(replay), partial(_table_lines, _rows(replay)))
        rate = f", {replay.count / seconds:,.0f} records/s" if seconds >= 1 else ""
        _print_note(f"{_totals_text(replay)} written to {self._request.to_topic}{rate}")
        if stopped_by:
            self._print_how_to_resume(writing, is_certain=True)
            return 128 + stopped_by
        return 0

    def _print_how_to_resume(self, writing: WritingReplay, *, is_certain: bool) -> None:
        """Print how to resume; if not `is_certain`, some later records may be written already."""
        if self._request.progress is not None:
            _print_note(
                f"run the same command to resume from the progress in {self._request.progress}"
            )
            return
        if not is_certain:
            _print_note(
                "some of the following records may already be written; use --progress FILE to "
                "resume without duplicates"
            )
        for options in writing.resume_hints():
            _print_note(f"to resume: {options}")

    def _show(self, replay: Replay, found: ReplaySetup) -> None:
        self.progress.show(replay.count, found.source.total, time.monotonic())


@asynccontextmanager
async def _stoppable(replay: Replay) -> AsyncIterator[list[int]]:
    """Stop the replay after the current batches on the first signal, at once on the second.

    Yields the list of received signals.
    """
    import trio

    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread receives signals
        return

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                received.append(number)
                if len(received) > 1:
                    raise KeyboardInterrupt
                replay.stop()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        yield received
        nursery.cancel_scope.cancel()


def _print_note(text: str) -> None:
    say(text, err=True)


def _rows(replay: Replay) -> list[dict[str, object]]:
    return [
        {
            "partition": index,
            "records": tally.records,
            "bytes": tally.size,
            "first_time": iso_time(tally.first_ms),
            "last_time": iso_time(tally.latest_ms),
        }
        for index, tally in sorted(replay.tallies.items())
    ]


def _table_lines(rows: list[dict[str, object]], wide: bool) -> list[str]:
    return table(COLUMNS, rows, wide=wide) if rows else []


def _totals_text(replay: Replay) -> str:
    size = sum(tally.size for tally in replay.tallies.values())
    return f"{replay.count:,} record{'' if replay.count == 1 else 's'}, {size:,} bytes,"
