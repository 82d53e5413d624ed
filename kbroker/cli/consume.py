"""The `kbroker topic consume` command: prints the records of topics."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from .access import Access
from .completion import complete_groups, complete_topics
from .confirmation import count_of
from .filters import chosen_selection, filter_options, report_too_large
from .output import Format, Progress, say
from .patterns import Names, regex_option, topic_names
from .schema_registries import chosen_registry, registry_option
from .target import SIGNALLED, TIMED_OUT, Target, fail, run, target_options
from .units import DURATION

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.consumer import ReadBatch
    from kbroker.client.offset_spec import OffsetSpec
    from kbroker.client.record_filter import Selection
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.client.topics import Partition

    from .part_types import PartTypes
    from .record_format import Printer
FROM_BEGINNING = "--from-beginning"
# Maximum number of partitions or topics that a message about waiting names.
WAITING_SHOWN_MAX = 3
# Size of a big-endian long.
LONG_BYTES = 8
# Returns consumed records with decoded keys and values.
Decode: TypeAlias = "Callable[[Sequence[ReadBatch]], Awaitable[Sequence[ReadBatch]]]"


@click.command(
    epilog=r"""
FORMAT is json or a template: %t topic, %p partition, %o offset, %e leader epoch,
%d time in ms or %d{strftime[%F %T]}, %k key, %v value, %h{%k=%v } headers,
%T %K %V %H their sizes, %x %y producer id and epoch, %a{compression},
%[ %] log start and high watermark, %i records so far, and \n \t \xNN.
%v{hex} and %v{base64} print bytes. %k and %v print decoded data as text or JSON.

TYPE is registry (data with a schema ID), none, string, json, short, int, long, float, double,
hex or base64; with key=TYPE or value=TYPE for only one of them.

OFFSETS are start, end, 47, +3, -2, @TIME, or two of them with a colon: :end, 47:60,
@-2h:1h, @2026-01-31:2026-02-01. TIME is ms, s, a date, RFC 3339 or a duration from now.
"""
)
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topics)
@regex_option
@click.option(
    "-o",
    "--offset",
    "offsets",
    metavar="OFFSETS",
    help="Offset at which to start, or a range with a start and an end.  [default: end]",
)
@click.option(FROM_BEGINNING, is_flag=True, help="Start at the first record; same as -o start.")
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this number of records.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Read only this partition; can be given several times.",
)
@click.option(
    "-g",
    "--group",
    shell_complete=complete_groups,
    help="Read as a member of this consumer group, and commit the offsets of printed records. "
    "OFFSETS apply only to partitions without a committed offset.",
)
@click.option(
    "-f",
    "--format",
    "template",
    default="json",
    show_default=True,
    metavar="FORMAT",
    help="How to print each record: json or a template (see below).",
)
@registry_option
@click.option(
    "-s",
    "--deserializer",
    "types",
    multiple=True,
    metavar="[key=|value=]TYPE",
    help="Decode keys and values as this type (see below); can be given several times.  [default: "
    "registry for data with a schema ID, if a registry is known, otherwise none]",
)
@click.option("--json", "as_json", is_flag=True, help="Print NDJSON; same as -f json.")
@click.option(
    "--meta-only", is_flag=True, help="With json: print the size of the value instead of the value."
)
@click.option(
    "--read-committed", is_flag=True, help="Print only records of committed transactions."
)
@click.option(
    "--print-control-records",
    is_flag=True,
    help="Also print transaction markers (control records).",
)
@filter_options
@click.option(
    "--timeout",
    type=DURATION,
    metavar="TIME",
    help="Exit with status 4 after this time, for example 30s.",
)
@target_options
def consume(target: Target, **options: Any) -> None:
    """Print the records of topics NAMES, in order within each partition.

    `produce --json` restores the output of `consume --json` byte for byte.
    """
    choices = _choices(target, **options)
    job = _Job(choices)
    needed = [] if choices.regex else [Access("read", "topic", each) for each in choices.names]
    if choices.group is not None:
        needed.append(Access("read", "group", choices.group))
    try:
        run(target, job.run, needed=needed)
    finally:
        job.progress.clear()
    if job.ended_by:
        sys.exit(SIGNALLED + job.ended_by)
    report_too_large(choices.selection)
    if text := job.empty_text():
        say(text, err=True)
    if job.timed_out:
        fail(f"timed out after {job.count} records", TIMED_OUT)


@dataclass(slots=True)
class Choices:
    """Options of the command line. If `last` is None, `consume` follows the topics without an end."""

    names: tuple[str, ...]
    regex: bool
    first: OffsetSpec
    last: OffsetSpec | None
    count: int | None
    partitions: tuple[int, ...]
    group: str | None
    printer: Printer
    committed: bool
    control: bool
    selection: Selection | None
    timeout: float | None
    types: PartTypes
    registry: SchemaRegistry | None
    has_types: bool
    # Option that sets the start, or None for the default.
    offset_option: str | None


def _choices(target: Target, **options: Any) -> Choices:
    from .offsets import BadOffsetSpec, parse_range
    from .part_types import AUTO, NONE, parse_types
    from .record_format import BadFormat, json_printer, template_printer

    offsets, from_beginning = options["offsets"], options["from_beginning"]
    if offsets is not None and from_beginning:
        raise click.UsageError("--from-beginning and --offset exclude each other")
    if options["group"] is not None and options["partitions"]:
        raise click.UsageError(
            "--group and --partition exclude each other, because the group assigns the partitions"
        )
    try:
        text = "start" if from_beginning else offsets or "end"
        first, last = parse_range(text, time.time_ns() // 1_000_000)
    except BadOffsetSpec as error:
        hint = ""
        if offsets in {*Format}:
            hint = "; -o selects offsets, the output format is -f json or -f TEMPLATE"
        raise click.BadParameter(f"{error}{hint}", param_hint="--offset") from None
    try:
        if options["as_json"] or options["template"] == "json":
            printer = json_printer(meta_only=options["meta_only"])
        else:
            printer = template_printer(options["template"])
    except BadFormat as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    needed_by = "-s registry" if parse_types(options["types"], NONE).needs_registry else None
    registry = chosen_registry(target.settings, options["registry"], needed_by)
    return Choices(
        options["names"],
        options["regex"],
        first,
        last,
        options["count"],
        options["partitions"],
        options["group"],
        printer,
        options["read_committed"],
        options["print_control_records"],
        chosen_selection(options),
        options["timeout"],
        parse_types(options["types"], NONE if registry is None else AUTO),
        registry,
        bool(options["types"]),
        FROM_BEGINNING if from_beginning else _start_option(offsets),
    )


def _start_option(offsets: str | None) -> str | None:
    """Return the name of the option that gives the start, or None if only an end is given."""
    return None if offsets is None or offsets.startswith(":") else "--offset"


class _Job:
    """One run of `consume`."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        # False once the hint is printed, or if the user has decided about decoding.
        self._may_hint = choices.registry is None and not choices.has_types and is_watched()
        self._total: int | None = None
        self.count = 0
        self.timed_out = False
        self.ended_by = 0  # the signal that stopped a group member
        self.progress = Progress("records read", is_visible=not sys.stdout.isatty())

    async def run(self, cluster: ClusterClient) -> None:
        import trio

        choices = self._choices
        seconds = float("inf") if choices.timeout is None else choices.timeout
        async with _decoding(choices.types, choices.registry) as decode:
            with trio.move_on_after(seconds) as scope:
                if choices.group is None:
                    await self._read(cluster, decode)
                else:
                    await self._read_as_member(cluster, choices.group, decode)
        self.timed_out = scope.cancelled_caught

    def empty_text(self) -> str | None:
        """Return why a range had nothing to print, or None if the range has no end, or records."""
        if self._choices.last is None or self.count or self.timed_out:
            return None
        if self._total == 0:
            return "the range has no records; `kbroker topic describe` shows the offsets"
        of = f" of {self._total:,}" if self._total is not None else ""
        return f"0{of} records match"

    async def _read(self, cluster: ClusterClient, decode: Decode) -> None:
        from kbroker.client.consumer import reading_records

        choices = self._choices
        ranges = await self._ranges(cluster)
        if choices.last is None and is_watched():
            await self._say_if_waiting(cluster, {one: first for one, (first, _) in ranges.items()})
        async with reading_records(
            cluster, ranges, committed=choices.committed, control=choices.control
        ) as channel:
            async for found in channel:
                self._print(await decode(found))
                if self._is_count_reached():
                    return

    async def _say_if_waiting(
        self, cluster: ClusterClient, positions: Mapping[Partition, int]
    ) -> None:
        """Print what this command waits for, if no record is there to be printed."""
        from kbroker.client.offset_spec import END, find

        ends = await find(cluster, list(positions), END, committed=self._choices.committed)
        if all(positions[one] >= ends[one] for one in positions):
            is_member = self._choices.group is not None
            say(waiting_text(positions, is_member=is_member), err=True)

    async def _describe_start(
        self,
        cluster: ClusterClient,
        group: str,
        positions: Mapping[Partition, int],
        committed: Collection[Partition],
    ) -> None:
        """Print that committed offsets replace the given ones, and what this command waits for."""
        choices = self._choices
        if committed and choices.offset_option is not None:
            option = choices.offset_option
            spec = "start" if option == FROM_BEGINNING else "OFFSET"
            partitions = count_of(len(committed), "partition")
            say(
                f"kbroker: group {group!r} has committed offsets in {partitions}, so that {option} "
                "does not apply there; stop all members and run "
                f"`kbroker group seek {shlex.quote(group)} --to {spec}` to change them",
                err=True,
            )
        if choices.last is None and is_watched():
            await self._say_if_waiting(cluster, positions)

    async def _read_as_member(self, cluster: ClusterClient, group: str, decode: Decode) -> None:
        import trio

        from kbroker.client.member import open_member
        from kbroker.client.offset_spec import find

        from .consume_member import MemberReader, end_on_signal

        choices = self._choices
        partitions = await self._partitions(cluster)
        last = None
        if choices.last is not None:
            last = await find(cluster, partitions, choices.last, committed=choices.committed)

        def ended(number: int) -> None:
            self.ended_by = number

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_on_signal, nursery.cancel_scope, ended)
            topics = sorted({topic for topic, _ in partitions})
            async with open_member(cluster, group, topics) as member:
                reader = MemberReader(
                    cluster,
                    group,
                    member,
                    self._print,
                    self._is_count_reached,
                    choices.first,
                    last,
                    committed=choices.committed,
                    control=choices.control,
                    decode=decode,
                    on_start=partial(self._describe_start, cluster, group),
                )
                await reader.run()
            nursery.cancel_scope.cancel()

    async def _ranges(self, cluster: ClusterClient) -> dict[Partition, tuple[int, int]]:
        from kbroker.client.consumer import FOREVER
        from kbroker.client.offset_spec import find

        choices = self._choices
        partitions = await self._partitions(cluster)
        first = await find(cluster, partitions, choices.first, committed=choices.committed)
        if choices.last is None:
            return {one: (first[one], FOREVER) for one in partitions}
        last = await find(cluster, partitions, choices.last, committed=choices.committed)
        ranges = {one: (first[one], last[one]) for one in partitions if first[one] < last[one]}
        self._total = sum(end - begin for begin, end in ranges.values())
        return ranges

    async def _partitions(self, cluster: ClusterClient) -> list[Partition]:
        from kbroker.client.topic_details import choose_partitions

        choices = self._choices
        names = await topic_names(cluster, Names(choices.names, choices.regex))
        chosen = [await choose_partitions(cluster, name, choices.partitions) for name in names]
        return [one for part in chosen for one in part]

    def _is_count_reached(self) -> bool:
        return self.count == self._choices.count

    def _print(self, found: Sequence[ReadBatch]) -> Sequence[ReadBatch]:
        """Print the wanted records up to the requested count; return the processed records."""
        out, printer = sys.stdout.buffer, self._choices.printer
        processed: list[ReadBatch] = []
        for batch in found:
            if self._may_hint:
                self._hint_at_registry(batch)
            indexes = self._wanted_indexes(batch)
            if self._choices.count is not None and self.count + len(indexes) >= self._choices.count:
                indexes = indexes[: self._choices.count - self.count]
                batch = batch.take(range(indexes[-1] + 1))
            processed.append(batch)
            shown = batch if len(indexes) == len(batch.records) else batch.take(indexes)
            out.write(printer(shown, self.count))
            self.count += len(indexes)
            if self._is_count_reached():
                break
        out.flush()
        self.progress.show(self.count, self._total, time.monotonic())
        return processed

    def _hint_at_registry(self, batch: ReadBatch) -> None:
        """Print once how to decode records that seem to have a schema ID."""
        from kbroker.schemas.core.framing import BY_ID, frame_of

        for data in batch.records[0][:2]:
            # A long of eight bytes often starts with a zero byte, too.
            if data and data[0] == BY_ID and len(data) != LONG_BYTES and frame_of(data, None):
                self._may_hint = False
                say(
                    f"records of {batch.partition[0]} start with a schema ID; --registry URL "
                    "decodes them",
                    err=True,
                )
                return

    def _wanted_indexes(self, batch: ReadBatch) -> Sequence[int]:
        selected = self._choices.selection
        if selected is None:
            return range(len(batch.records))
        topic, partition = batch.partition
        return [
            index
            for index, record in enumerate(batch.records)
            if selected(topic, partition, record)
        ]


def is_watched() -> bool:
    """Return True if a person sees the error stream."""
    return sys.stderr.isatty()


def waiting_text(positions: Mapping[Partition, int], *, is_member: bool = False) -> str:
    """Return a message about the next offsets of the partitions that are read."""
    shown = [
        f"partition {index} of {topic} from offset {offset}"
        for (topic, index), offset in sorted(positions.items())
    ]
    if len(shown) > WAITING_SHOWN_MAX:
        topics = sorted({topic for topic, _ in positions})
        rest = " and others" if len(topics) > WAITING_SHOWN_MAX else ""
        names = ", ".join(topics[:WAITING_SHOWN_MAX])
        shown = [f"{len(positions)} partitions of {names}{rest} from their ends"]
    hint = "" if is_member else "--from-beginning prints the existing ones, "
    return f"waiting for new records: {', '.join(shown)}; {hint}Ctrl+C stops"


@asynccontextmanager
async def _decoding(types: PartTypes, registry: SchemaRegistry | None) -> AsyncIterator[Decode]:
    """Yield a function that decodes records."""
    if types.is_plain:
        yield _unchanged
        return
    from .record_decoding import open_decoder

    async with open_decoder(types, registry) as decoder:
        yield decoder.decode


async def _unchanged(found: Sequence[ReadBatch]) -> Sequence[ReadBatch]:
    return found
