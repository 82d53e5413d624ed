"""The `kbroker topic produce` command: writes lines of standard input or a file as records."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import click

from .access import Access
from .completion import complete_topics
from .output import Progress, WrittenLines, prompt, say
from .schema_registries import chosen_registry, registry_option
from .streams import discard_output
from .target import Target, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.ndjson import Line
    from kbroker.client.producer import Written
    from kbroker.client.topics import Partition
    from kbroker.protocol.records import Record

    from .record_encoding import RecordEncoder
    from .record_format import Printer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ENCODING_OPTIONS = ("registry", "key_schema", "value_schema")
PROMPT, PROMPT_HELP = "> ", "one record per line; Ctrl+D ends"
OUTPUT_FORMAT = r"Produced to partition %p at offset %o with timestamp %d.\n"


@click.command(
    epilog="""
SCHEMA is SUBJECT or SUBJECT:VERSION, the ID of a schema, or @FILE, which is registered
under NAME-key or NAME-value. SCHEMA#MESSAGE names a Protobuf message other than the first.
With --json, the fields key_schema_id and value_schema_id of a line have the same effect.
"""
)
@click.argument("name", required=False, shell_complete=complete_topics)
@click.argument("values", nargs=-1)
@click.option("-k", "--key", help="Key of every record.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="KEY:VALUE",
    help="Add this header to every record; can be given several times.",
)
@click.option(
    "-d",
    "--delimiter",
    metavar="TEXT",
    help=r"Split each line into key and value at TEXT, for example ':' or '\t' (a tab).",
)
@click.option(
    "-Z", "--tombstone", is_flag=True, help="Write one record with the key --key and a null value."
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(-1),
    help="Partition to write to; -1 selects it by the key, even if a line of --json has a "
    "partition.",
)
@click.option(
    "-t",
    "--timestamp",
    metavar="TIME",
    help="Timestamp of every record: milliseconds, seconds, a date, or a duration such as -48h.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="Compression codec of the batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it is acknowledged: all in-sync replicas, the "
    "leader, or none.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Read lines in the format of `consume --json`."
)
@registry_option
@click.option(
    "--key-schema",
    metavar="SCHEMA",
    help="Encode keys, given as JSON, with this schema of the registry (see below).",
)
@click.option(
    "--value-schema",
    metavar="SCHEMA",
    help="Encode values, given as JSON, with this schema of the registry (see below).",
)
@click.option(
    "-q", "--quiet", is_flag=True, help="Do not print the partition and offset of each record."
)
@click.option(
    "-f",
    "--format",
    "output_format",
    metavar="FORMAT",
    default=OUTPUT_FORMAT,
    help="Template to print for each record (not with --json), as for `consume -f`.",
)
@click.option(
    "--file",
    "file",
    type=click.File("rb", lazy=False),
    help="Read lines from this file instead of standard input.",
)
@target_options
def produce(
    target: Target, name: str | None, file: BinaryIO | None, acks: str, **options: Any
) -> None:
    """Write records to topic NAME: one for each of VALUES, or else for each line of the input.

    Records with a key go to the same partition as with Java's producer. With --json the lines may
    name the topic.
    """
    encoder = _encoder(target, name, **{each: options.pop(each) for each in ENCODING_OPTIONS})
    choices = _choices(name=name, **options)
    job = _Job(choices, encoder, _line_chunks(file, choices), -1 if acks == "all" else int(acks))
    try:
        run(target, job.run, needed=[Access("write", "topic", name)] if name else ())
    except BaseException:
        job.progress.clear()
        has_input = not choices.values and not choices.tombstone
        if has_input and (file is not None or not sys.stdin.isatty()):
            job.lines.report()
        raise
    job.progress.clear()
    if choices.as_json and not choices.quiet:
        say(f"{job.count:,} record{'' if job.count == 1 else 's'} written", err=True)


@dataclass(slots=True)
class Choices:
    """Options that apply to every record.

    If `timestamp_ms` is None, the current time is used. If `printer` is None, nothing is printed.
    """

    name: str | None
    values: list[bytes]
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    delimiter: bytes | None
    tombstone: bool
    partition: int | None
    timestamp_ms: int | None
    compression: str
    as_json: bool
    quiet: bool
    printer: Printer | None


def _choices(**options: Any) -> Choices:
    """Validate and parse the options."""
    from kbroker.protocol.records import NO_TIMESTAMP

    from .offsets import BadOffsetSpec, parse_time
    from .record_format import BadFormat, template_printer, unescape

    if options["name"] is None and not options["as_json"]:
        raise click.UsageError("no topic; use kbroker topic produce NAME")
    if options["tombstone"] and options["key"] is None:
        raise click.UsageError("--tombstone needs --key")
    if options["as_json"] and (options["delimiter"] or options["values"] or options["tombstone"]):
        raise click.UsageError("--json excludes VALUES, --delimiter and --tombstone")
    timestamp = options.pop("timestamp")
    try:
        now_ms = time.time_ns() // 1_000_000
        options["timestamp_ms"] = None if timestamp is None else parse_time(timestamp, now_ms)
        if options["timestamp_ms"] == NO_TIMESTAMP:
            raise BadOffsetSpec(f"{timestamp} is {NO_TIMESTAMP} ms, which means no timestamp")
    except BadOffsetSpec as error:
        raise click.BadParameter(str(error), param_hint="--timestamp") from None
    template = options.pop("output_format")
    try:
        printer = template_printer(template)
    except BadFormat as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    options["printer"] = None if options["quiet"] or options["as_json"] else printer
    options["headers"] = [_header(text) for text in options["headers"]]
    options["key"] = None if options["key"] is None else os.fsencode(options["key"])
    options["values"] = [os.fsencode(value) for value in options["values"]]
    try:
        options["delimiter"] = unescape(options["delimiter"]) if options["delimiter"] else None
    except BadFormat as error:
        raise click.BadParameter(str(error), param_hint="--delimiter") from None
    return Choices(**options)


def _encoder(
    target: Target,
    name: str | None,
    registry: str | None,
    key_schema: str | None,
    value_schema: str | None,
) -> RecordEncoder | None:
    """Return the encoder of keys and values, or None if no registry is known."""
    chosen = {"key": key_schema, "value": value_schema}
    needed_by = next((f"--{part}-schema" for part, text in chosen.items() if text), None)
    client = chosen_registry(target.settings, registry, needed_by)
    if client is None:
        return None
    from .record_encoding import RecordEncoder, parse_choice

    choices = {part: parse_choice(text, name, part) for part, text in chosen.items() if text}
    return RecordEncoder(client, choices)


def _header(text: str) -> tuple[str, bytes | None]:
    key, separator, value = text.partition(":")
    if not separator:
        raise click.BadParameter(
            f"invalid header {text!r}; expected KEY:VALUE", param_hint="--header"
        )
    return key, os.fsencode(value)


# Lines, in chunks of those available at the same time.
Chunks: TypeAlias = AsyncIterator[Sequence[bytes]]


def _line_chunks(file: BinaryIO | None, choices: Choices) -> Chunks:
    """Return the source of the lines."""
    if choices.tombstone:
        return _one_chunk([b""])
    if choices.values:
        return _one_chunk(choices.values)
    from kbroker.client.lines import lines_of

    if file is None and sys.stdin.isatty():
        return _prompted(lines_of(sys.stdin.buffer))
    return lines_of(file or sys.stdin.buffer)


async def _prompted(chunks: Chunks) -> Chunks:
    """Print a prompt before each line that a person types."""
    say(PROMPT_HELP, err=True)
    prompt(PROMPT)
    async for lines in chunks:
        yield lines
        prompt(PROMPT)


async def _one_chunk(values: Sequence[bytes]) -> Chunks:
    yield values


class _Job:
    """One run of `produce`."""

    def __init__(
        self, choices: Choices, encoder: RecordEncoder | None, chunks: Chunks, acks: int
    ) -> None:
        self._choices = choices
        self._encoder = encoder
        self._chunks = chunks
        self._acks = acks
        self.lines = WrittenLines()
        self.count = 0
        self.progress = Progress("records written")

    async def run(self, cluster: ClusterClient) -> None:
        from kbroker.client.producer import ALL_IN_SYNC, ANY_PARTITION, Producer, new_identity
        from kbroker.protocol.compression import Codec

        choices = self._choices
        codec = Codec[choices.compression.upper()]
        # Be idempotent, so that a batch whose response was lost can be sent again.
        identity = await new_identity(cluster) if self._acks == ALL_IN_SYNC else None
        producer = Producer(cluster, acks=self._acks, codec=codec, identity=identity)
        async for lines in self._chunks:
            placed: dict[Partition, list[Record]] = {}
            now_ms = time.time_ns() // 1_000_000
            for text in lines:
                line = self._parse(text, now_ms)
                if line is None:
                    continue
                line = await self._encode(line)
                wanted = line.partition if choices.partition is None else choices.partition
                at = await producer.place(
                    line.topic or "", line.record, ANY_PARTITION if wanted is None else wanted
                )
                placed.setdefault(at, []).append(line.record)
            with self.lines.writing():
                written = await producer.write(placed)
            self._report(written)

    async def _encode(self, line: Line) -> Line:
        """Return the line with encoded key and value. Raises ClientError."""
        if self._encoder is not None:
            return await self._encoder.encode(line, self.lines.read)
        if line.key_schema is not None or line.value_schema is not None:
            from kbroker.client.errors import ClientError

            raise ClientError(
                f"line {self.lines.read}: a schema ID needs a schema registry; add --registry "
                "URL, or print the records with `consume -s none`"
            )
        return line

    def _parse(self, text: bytes, now_ms: int) -> Line | None:
        """Parse one line as a record; return None for an empty line of JSON.

        Raises:
            ClientError: The line is invalid.
        """
        from kbroker.client.errors import ClientError
        from kbroker.client.ndjson import BadLine, Line, parse_line
        from kbroker.protocol.records import Record

        choices = self._choices
        self.lines.read += 1
        now_ms = now_ms if choices.timestamp_ms is None else choices.timestamp_ms
        if not choices.as_json:
            key, value = choices.key, None if choices.tombstone else text
            if choices.delimiter is not None:
                key, separator, value = text.partition(choices.delimiter)
                if not separator:
                    raise ClientError(
                        f"line {self.lines.read} has no delimiter {os.fsdecode(choices.delimiter)!r}"
                    )
            return Line(choices.name, None, Record(key, value, now_ms, choices.headers))
        if not text.strip():
            return None
        try:
            line = parse_line(text, now_ms, with_schemas=True)
        except BadLine as error:
            raise ClientError(f"line {self.lines.read}: {error}") from None
        return self._apply_choices(line)

    def _apply_choices(self, line: Line) -> Line:
        """Apply the options, which take precedence over the fields of the JSON line."""
        from kbroker.client.errors import ClientError

        choices, record = self._choices, line.record
        if choices.key is not None:
            record = record._replace(key=choices.key)
        if choices.timestamp_ms is not None:
            record = record._replace(timestamp=choices.timestamp_ms)
        if choices.headers:
            record = record._replace(headers=[*record.headers, *choices.headers])
        topic = choices.name or line.topic
        if topic is None:
            raise ClientError(
                f"line {self.lines.read}: no topic; add one to the line or use produce NAME"
            )
        return line._replace(topic=topic, record=record)

    def _report(self, written: Sequence[Written]) -> None:
        from kbroker.client.consumer import ReadBatch

        out = sys.stdout.buffer
        for batch in written:
            placed = ReadBatch(batch.partition, batch.header, -1, -1, batch.placed)
            try:
                if self._choices.printer is not None:
                    out.write(self._choices.printer(placed, self.count))
                    out.flush()
            except BrokenPipeError:  # such as `| head`: the rest of the input is still written
                discard_output()
                self._choices.printer = None
            self.count += len(batch.records)
        self.progress.show(self.count, None, time.monotonic())
