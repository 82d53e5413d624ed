"""The `kbroker log dump` command: prints the files of a partition."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from kbroker.client.ndjson import bytes_field, headers_field
from kbroker.cluster.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator_runtime.log_records import Row, coordinator_record
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.record_stream import batch_records
from kbroker.protocol.records import BatchHeader, Record, check_crc, read_header, read_marker
from kbroker.storage.batches import BEGINNING, Position, walk
from kbroker.storage.checkpoints import parse_lines
from kbroker.storage.errors import CorruptLogError
from kbroker.storage.files import OsFiles
from kbroker.storage.index import OffsetIndex, TimeIndex, aborted_from_bytes
from kbroker.storage.naming import (
    LEADER_EPOCHS,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_directory_name,
    parse_file_name,
)
from kbroker.storage.producer_state import ProducerStates

from .output import say, to_json

if TYPE_CHECKING:
    from kbroker.storage.files import File

T = TypeVar("T")
SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("-r", "--records", is_flag=True, help="Also print the records of each batch.")
@click.option(
    "--offsets-decoder",
    is_flag=True,
    help="Decode records as those of __consumer_offsets; the default in its directories.",
)
@click.option(
    "--transaction-log-decoder",
    is_flag=True,
    help="Decode records as those of __transaction_state; the default in its directories.",
)
@click.option(
    "--share-group-state-decoder",
    is_flag=True,
    help="Decode records as those of __share_group_state; the default in its directories.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print NDJSON: one JSON object for each entry."
)
def dump(
    paths: tuple[Path, ...],
    records: bool,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    share_group_state_decoder: bool,
    as_json: bool,
) -> None:
    """Print the batches of segments, and the entries of indexes, snapshots and epoch files.

    PATHS are files, or partition directories, whose segments are printed. Files of Apache Kafka
    have the same format. Exit status 1 if a file is damaged.
    """
    decoder_topic = TRANSACTIONS_TOPIC if transaction_log_decoder else None
    decoder_topic = SHARE_STATE_TOPIC if share_group_state_decoder else decoder_topic
    decoder_topic = OFFSETS_TOPIC if offsets_decoder else decoder_topic
    damaged = False
    for path in paths:
        for file in _files_in(path):
            if not as_json:
                say(f"{file}")
            try:
                for row in rows_of(file, records=records, decoder_topic=decoder_topic):
                    damaged |= row.get("valid") is False
                    say(to_json(row) if as_json else _text(row))
            except (KafkaError, DecodeError, ValueError) as error:
                damaged = True
                message = error.message if isinstance(error, KafkaError) else None
                say(f"kbroker: {file}: {message or error}", err=True)
    if damaged:
        sys.exit(1)


def _files_in(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob(f"*{LOG}"))
    known = path.suffix in SUFFIXES or path.name == LEADER_EPOCHS or path.suffix == ".checkpoint"
    if not known:
        raise click.UsageError(
            f"{path.name}: unsupported file type (valid: {', '.join(SUFFIXES)}, {LEADER_EPOCHS})"
        )
    return [path]


def _text(row: Row) -> str:
    indent = "  | " if row["kind"] == "record" else "  "
    fields = (
        f"{key}={value if not isinstance(value, dict | list) else to_json(value)}"
        for key, value in row.items()
        if key != "kind"
    )
    return indent + " ".join(fields)


def rows_of(
    path: Path, *, records: bool = False, decoder_topic: str | None = None
) -> Iterator[Row]:
    """Yield the entries of one file.

    Args:
        path: The file.
        records: Also yield the records of each batch.
        decoder_topic: Topic whose record format is used; by default the topic of the directory.

    Raises:
        KafkaError: A batch is damaged.
        ValueError: The file is damaged.
    """
    if path.suffix in (LOG, ".checkpoint"):
        topic_partition = parse_directory_name(path.resolve().parent.name)
        yield from _batches(
            path, records, decoder_topic or (topic_partition[0] if topic_partition else "")
        )
        return
    data = path.read_bytes()
    if path.name == LEADER_EPOCHS:
        for epoch, start in _require_valid(parse_lines(data, 0)):
            yield {"kind": "epoch", "epoch": int(epoch), "start_offset": int(start)}
        return
    base = (parse_file_name(path.name) or (0, ""))[0]
    yield from {
        OFFSET_INDEX: _offset_entries,
        TIME_INDEX: _time_entries,
        TXN_INDEX: _aborted_entries,
        SNAPSHOT: _producer_entries,
    }[path.suffix](data, base)


def _require_valid(parsed: T | None) -> T:
    if parsed is None:
        raise ValueError("the file is damaged")
    return parsed


# -- segments


def _batches(path: Path, records: bool, decoder_topic: str) -> Iterator[Row]:
    file = OsFiles().open(str(path))
    try:
        for span in walk(file, BEGINNING, Position(file.size)):
            yield from _batch(file, span.position, span.size, records, decoder_topic)
    except CorruptLogError as error:
        yield {"kind": "damage", "position": error.position, "valid": False, "why": error.reason}
    finally:
        file.close()


def _batch(
    file: File, position: int, size: int, records: bool, decoder_topic: str
) -> Iterator[Row]:
    data = file.read(position, size)
    header = read_header(data)
    valid = check_crc(data, 0, header)
    yield {
        "kind": "batch",
        "position": position,
        "size": size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "leader_epoch": header.leader_epoch,
        "codec": Codec(header.codec).name.lower() if header.codec <= Codec.ZSTD else header.codec,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
        "valid": valid,
    }
    if records and valid:
        for record in batch_records(data, header):
            yield _record(record, header, decoder_topic)


def _record(record: Record, header: BatchHeader, decoder_topic: str) -> Row:
    row: Row = {"kind": "record", "offset": record.offset, "timestamp": record.timestamp}
    if header.is_control:
        marker = read_marker(record)
        if marker is not None:
            ending = "commit" if marker.commit else "abort"
            return row | {"marker": ending, "coordinator_epoch": marker.coordinator_epoch}
    elif record.key is not None:
        decoded = coordinator_record(decoder_topic, record.key, record.value)
        if decoded is not None:
            return row | decoded
    row |= bytes_field("key", record.key) | bytes_field("value", record.value)
    return row | {"headers": headers_field(record)}


# -- indexes and snapshots


def _offset_entries(data: bytes, base: int) -> Iterator[Row]:
    index: OffsetIndex = _require_valid(OffsetIndex.from_bytes(data, sys.maxsize))
    for offset, position in zip(index.offsets, index.positions, strict=True):
        yield {"kind": "index", "offset": offset + base, "position": position}


def _time_entries(data: bytes, base: int) -> Iterator[Row]:
    index: TimeIndex = _require_valid(TimeIndex.from_bytes(data))
    for timestamp, offset in zip(index.timestamps, index.offsets, strict=True):
        yield {"kind": "timeindex", "timestamp": timestamp, "offset": offset + base}


def _aborted_entries(data: bytes, _base: int) -> Iterator[Row]:
    for entry in _require_valid(aborted_from_bytes(data)):
        yield {"kind": "aborted", **entry._asdict()}


def _producer_entries(data: bytes, _base: int) -> Iterator[Row]:
    for producer_id, producer in _require_valid(ProducerStates.from_bytes(data, 0)):
        last = producer.batches[-1] if producer.batches else None
        yield {
            "kind": "producer",
            "producer_id": producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": last.last_sequence if last else -1,
            "last_offset": last.last_offset if last else -1,
            "timestamp": producer.timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_start": producer.transaction_start,
        }
