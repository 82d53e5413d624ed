"""`kbroker replay`: write records again that were written once."""

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

from kbroker.text.times import iso_time

from .completion import complete_topics
from .filters import chosen_filter, filter_options
from .output import Column, Progress, format_options, say, show, table
from .produce import CODECS
from .target import REGISTRY, Target, parse_addresses, registry_of, run, target_options
from .units import ParamType, parse_duration

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.offset_spec import OffsetSpec
    from kbroker.pipelines.replay.job import Found, Order, Writing
    from kbroker.pipelines.replay.pace import Pace
    from kbroker.pipelines.replay.replay import Replay
    from kbroker.pipelines.replay.values import Subject

WRITTEN = (
    "topic", "ndjson", "lake", "to_topic", "begin", "end", "partitions", "filter_key",
    "filter_value", "filter_header", "filter_field", "to_schema", "timestamps", "partitioner", "committed",
)  # fmt: skip
"""The options that decide what is written; a run that goes on must be given the same."""
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
            self.fail(f"{value!r} is not a factor such as 2x or 0.5", param, context)
        return factor


@click.command(
    epilog="""\b
OFFSET is start, end, 47, +3 (after the start), -2 (before the end) or @TIME; --to is the offset
to stop before. TIME is ms, s, a date, RFC 3339 or a duration from now such as -2h.
"""
)
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--to-topic", required=True, metavar="NAME", help="The topic that is written.")
@click.option(
    "--to-bootstrap",
    metavar="HOST:PORT",
    help="The cluster that is written.  [default: the one of --bootstrap]",
)
@click.option(
    "--ndjson",
    type=click.File("rb", lazy=False),
    help="Read lines as `kbroker topic consume` prints them; - is the standard input.",
)
@click.option(
    "--lake",
    type=click.Path(exists=True, file_okay=False),
    help="Read what `kbroker lake` put into this directory.",
)
@click.option(
    "--from", "begin", default="start", show_default=True, metavar="OFFSET", help="Where to begin."
)
@click.option(
    "--to", "end", default="end", show_default=True, metavar="OFFSET", help="Where to stop."
)
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True)
@filter_options
@click.option(
    "--timestamps",
    default="original",
    show_default=True,
    metavar="original|now|SHIFT",
    help="now: the first record's is now, the others follow; SHIFT: -7d, +2h.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Records a second.")
@click.option("--speed", type=Speed(), metavar="2x", help="As it happened, so many times faster.")
@click.option(
    "--partitioner",
    "partitioner",
    type=click.Choice(["auto", "keep", "key"]),
    default="auto",
    show_default=True,
    help="Keep partitions, or go by the key; auto keeps them if the target has as many.",
)
@click.option(
    "--to-schema",
    metavar="SUBJECT",
    help="Encode values, which are objects of JSON, as Avro by the newest schema of this subject.",
)
@click.option(
    "--to-registry",
    metavar="URL",
    help="The schema registry of that subject.  [default: schema.registry.url of the profile]",
)
@click.option("-z", "--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option(
    "--read-uncommitted",
    "committed",
    flag_value=False,
    default=True,
    help="Also what transactions wrote that did not commit.",
)
@click.option(
    "--progress",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep here how far it came; the same command goes on from there and doubles nothing.",
)
@click.option(
    "--allow-same-topic", is_flag=True, help="Allow to write into the topic that is read."
)
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@target_options
@partial(format_options, short=False)
def replay(
    target: Target, output: str, dry_run: bool, to_bootstrap: str | None, **asked: Any
) -> None:
    """Write the records of TOPIC, of lines of JSON, or of the lake, once more.

    Keys, headers and the order of each partition stay. No consumer group is asked or changed.
    """
    if asked["topic"] is None and asked["ndjson"] is None:
        raise click.UsageError("name a topic, or lines with --ndjson FILE")
    if asked["ndjson"] is not None and asked["lake"] is not None:
        raise click.UsageError("--ndjson and --lake exclude each other")
    command = _Command(_order(asked, target.settings), output, dry_run)
    to = None if to_bootstrap is None else parse_addresses(to_bootstrap, "--to-bootstrap")

    async def work(cluster: ClusterClient) -> int:
        if to is None:
            return await command.run(cluster, cluster)
        async with replace(target, bootstrap=to).opened() as to_cluster:
            return await command.run(cluster, to_cluster)

    try:
        status = run(target, work)
    finally:
        command.progress.clear()
    sys.exit(status)


def _order(asked: dict[str, Any], settings: Mapping[str, str]) -> Order:
    """What the options say. Raises BadParameter and UsageError."""
    from kbroker.pipelines.replay.job import Order
    from kbroker.pipelines.replay.partitioners import PartitionerName
    from kbroker.protocol.compression import Codec

    now_ms = time.time_ns() // 1_000_000
    lines, said = asked["ndjson"], {name: _as_json(asked[name]) for name in WRITTEN}
    return Order(
        to_topic=asked["to_topic"],
        first=_offset_spec(asked["begin"], now_ms, "--from"),
        last=_offset_spec(asked["end"], now_ms, "--to"),
        pace=_pace(asked["rate"], asked["speed"]),
        topic=asked["topic"],
        lines=lines,
        lines_name="the input" if lines is None else getattr(lines, "name", "the input"),
        lake=asked["lake"],
        partitions=asked["partitions"],
        wanted=chosen_filter(asked),
        partitioner=PartitionerName(asked["partitioner"]),
        shift_ms=_shift(asked["timestamps"]),
        subject=_subject(asked["to_schema"], asked["to_registry"], settings),
        codec=Codec[asked["compression"].upper()],
        committed=asked["committed"],
        allow_same_topic=asked["allow_same_topic"],
        progress=asked["progress"],
        asked=said,
    )


def _as_json(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | bool | None) else str(getattr(value, "name", value))


def _subject(name: str | None, registry: str | None, settings: Mapping[str, str]) -> Subject | None:
    """The subject whose schema values are written by. Raises BadParameter and UsageError."""
    from kbroker.pipelines.replay.values import Subject

    if name is None:
        if registry is not None:
            raise click.UsageError("--to-registry needs --to-schema SUBJECT")
        return None
    address = registry_of(settings, registry)
    if address is None:
        raise click.UsageError(f"--to-schema needs --to-registry URL, or -X {REGISTRY}=URL")
    if not address.startswith(("http://", "https://")):
        raise click.BadParameter(
            "it is no address such as http://HOST:PORT", param_hint="--to-registry"
        )
    return Subject(name, address)


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


def _shift(text: str) -> int | None:
    """What to add to timestamps in ms; None: so much that the first is now."""
    if text in ("original", "now"):
        return 0 if text == "original" else None
    try:
        if text[:1] not in "+-":
            raise ValueError(f"{text!r} is not original, now, or a shift such as -7d or +2h")
        return round(parse_duration(text[1:]) * 1000) * (-1 if text[0] == "-" else 1)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--timestamps") from None


class _Command:
    """One run of `kbroker replay`."""

    def __init__(self, order: Order, output: str, dry_run: bool) -> None:
        self._order = order
        self._output = output
        self._dry_run = dry_run
        self.progress = Progress("records read" if dry_run else "records written")

    async def run(self, cluster: ClusterClient, to_cluster: ClusterClient) -> int:
        """Replay; returns the exit status."""
        from kbroker.pipelines.replay.job import find
        from kbroker.pipelines.replay.journal import locked

        with locked(None if self._dry_run else self._order.progress):
            found = await find(self._order, cluster, to_cluster)
            self._say_where(found)
            if not self._dry_run:
                return await self._write(found, to_cluster)
            await self._rehearse(found)
            return 0

    def _say_where(self, found: Found) -> None:
        """Say what is not as one may expect it."""
        source, target, order = found.source, found.target, self._order
        if not target.partitions:
            return
        if found.keeps or source.partitions == target.partitions:
            return
        _note(
            f"{source.name} has {source.partitions} partitions, {target.topic} has "
            f"{target.partitions}: records go by their keys"
            if order.partitioner == "auto"
            else "records go by their keys"
        )

    async def _rehearse(self, found: Found) -> None:
        from kbroker.pipelines.replay.job import rehearse
        from kbroker.pipelines.replay.target import missing

        rehearsal = rehearse(self._order, found, lambda: self._show(rehearsal, found))
        await rehearsal.run()
        self.progress.clear()
        show(self._output, _rows(rehearsal), partial(_text, _rows(rehearsal)))
        tallies = rehearsal.tallies.values()
        first_ms = min((each.first_ms for each in tallies if each.first_ms is not None), default=0)
        latest_ms = max(
            (each.latest_ms for each in tallies if each.latest_ms is not None), default=0
        )
        seconds = self._order.pace.seconds(rehearsal.count, first_ms, latest_ms)
        takes = f", in {seconds:,.1f} s" if seconds else ""
        _note(f"{_total(rehearsal)} would be written to {self._order.to_topic}{takes}")
        if not found.target.partitions:
            _note(str(missing(found.target, found.source.partitions)))
        elif rehearsal.count:
            for remark in found.target.remarks(first_ms, time.time_ns() // 1_000_000):
                _note(remark)

    async def _write(self, found: Found, to_cluster: ClusterClient) -> int:
        from kbroker.pipelines.replay.job import prepare

        writing = await prepare(
            self._order, found, to_cluster, lambda: self._show(writing.replay, found)
        )
        replay = writing.replay
        if writing.earlier:
            _note(f"{writing.earlier:,} records are written already; going on")
        began_at = time.monotonic()
        try:
            async with _stoppable(replay) as signals:
                done = await replay.run()
            stopped_by = 0 if done else signals[0]
        except BaseException:
            self.progress.clear()
            self._say_how_to_go_on(writing, sure=False)
            raise
        self.progress.clear()
        writing.keep(finished=not stopped_by)
        seconds = time.monotonic() - began_at
        show(self._output, _rows(replay), partial(_text, _rows(replay)))
        rate = f", {replay.count / seconds:,.0f} records/s" if seconds >= 1 else ""
        _note(f"{_total(replay)} written to {self._order.to_topic}{rate}")
        if stopped_by:
            self._say_how_to_go_on(writing, sure=True)
            return 128 + stopped_by
        return 0

    def _say_how_to_go_on(self, writing: Writing, *, sure: bool) -> None:
        """Say how far it came; not `sure`: something that follows may be written too."""
        if self._order.progress is not None:
            _note(f"the same command goes on; {self._order.progress} says from where")
            return
        if not sure:
            _note(
                "what follows may be written in part; --progress FILE goes on without doubling it"
            )
        for options in writing.left():
            _note(f"to go on: {options}")

    def _show(self, replay: Replay, found: Found) -> None:
        self.progress.show(replay.count, found.source.total, time.monotonic())


@asynccontextmanager
async def _stoppable(replay: Replay) -> AsyncIterator[list[int]]:
    """Let the first signal stop the replay after what it has begun, and the second one at once.

    Gives the list of signals that came.
    """
    import trio

    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came  # signals come to the main thread only
        return

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                came.append(number)
                if len(came) > 1:
                    raise KeyboardInterrupt
                replay.stop()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        yield came
        nursery.cancel_scope.cancel()


def _note(text: str) -> None:
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


def _text(rows: list[dict[str, object]], wide: bool) -> list[str]:
    return table(COLUMNS, rows, wide=wide) if rows else []


def _total(replay: Replay) -> str:
    size = sum(tally.size for tally in replay.tallies.values())
    return f"{replay.count:,} record{'' if replay.count == 1 else 's'}, {size:,} bytes,"
