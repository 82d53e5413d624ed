"""The `kbroker log` command: works on the files of partitions of a stopped broker."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbroker.text.sizes import human_size

from .confirmation import Change, Preview, destructive
from .lazy import LazyGroup
from .output import Column, Progress, format_options, say, show, table
from .target import fail

if TYPE_CHECKING:
    from kbroker.storage.checkpoints import Offsets
    from kbroker.storage.manager import RepairResult
    from kbroker.storage.verify import Problem, Report

COMMANDS = {
    "dump": ("kbroker.cli.log_dump:dump", "Print batches, records and index entries of files."),
    "verify": ("kbroker.cli.log:verify", "Check every batch, index and snapshot."),
    "repair": ("kbroker.cli.log:repair", "Truncate a damaged partition before the damage."),
    "import": ("kbroker.cli.log:import_kafka", "Import the partitions of a stopped Apache Kafka."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def log() -> None:
    """Work on the files of partitions; the broker must be stopped."""


@click.command()
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@format_options
def verify(directories: tuple[Path, ...], output: str) -> None:
    """Check the files in DIRECTORIES: data directories or partition directories (data-dir/topic-N).

    The command changes nothing. Exit status 1 if there is a problem. It can also check directories
    of Apache Kafka.
    """
    from kbroker.protocol.errors import KafkaError

    progress = Progress("bytes checked")
    try:
        reports, problems = _verify(directories, progress)
    except KafkaError as error:
        fail(error.message or str(error))
    finally:
        progress.clear()
    found = [each for report in reports for each in report.problems] + problems
    rows: list[dict[str, object]] = [
        {
            "partition": Path(report.directory).name,
            "segments": report.segments,
            "bytes": report.bytes,
            "batches": report.batches,
            "records": report.records,
            "start_offset": report.start_offset if report.batches else None,
            "end_offset": report.end_offset if report.batches else None,
            "gaps": report.gaps,
            "problems": len(report.problems),
        }
        for report in reports
    ]
    value = {"partitions": rows, "problems": [each._asdict() for each in found]}

    def text(wide: bool) -> list[str]:
        columns = [Column(key, wide=key == "batches") for key in rows[0]]
        lines = table(columns, rows, wide=wide)
        lines += [f"{each.path}{_position_text(each.position)}: {each.reason}" for each in found]
        if found:
            lines.append("`kbroker log repair DIRECTORY` truncates a partition before the damage")
        return lines

    show(output, value, text)
    if found:
        sys.exit(1)


def _verify(
    directories: tuple[Path, ...], progress: Progress
) -> tuple[list[Report], list[Problem]]:
    """Verify partitions, and the checkpoint files of data directories."""
    from kbroker.storage.files import OsFiles
    from kbroker.storage.verify import verify_checkpoints, verify_partition

    files = OsFiles()
    partitions = {directory: _partitions_in(directory) for directory in directories}
    paths = [path for listed in partitions.values() for path in listed]
    if not paths:
        raise click.UsageError("no partitions found in these directories")
    total = sum(path.stat().st_size for directory in paths for path in directory.glob("*.log"))
    reports: list[Report] = []
    problems: list[Problem] = []
    for directory, listed in partitions.items():
        begin = len(reports)
        for path in listed:
            done = sum(report.bytes for report in reports)

            def show_progress(read: int, before: int = done) -> None:
                progress.show(before + read, total, time.monotonic())

            reports.append(verify_partition(files, str(path), show_progress))
        if listed != [directory]:
            problems += verify_checkpoints(files, str(directory), reports[begin:])
    return reports, problems


def _position_text(position: int | None) -> str:
    return "" if position is None else f" at byte {position}"


def _partitions_in(directory: Path) -> list[Path]:
    """Return the directory itself if it is a partition directory, else the partitions in it."""
    from kbroker.storage.naming import parse_directory_name

    if any(directory.glob("*.log")):
        return [directory]
    return [
        path
        for path in sorted(directory.iterdir())
        if path.is_dir() and parse_directory_name(path.name) and any(path.glob("*.log"))
    ]


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@destructive
def repair(directory: Path, change: Change) -> None:
    """Truncate a damaged partition before the damage, in its DIRECTORY (data-dir/topic-N).

    The command moves the bytes after the damage to .corrupt files and deletes nothing. It prints
    the lost offsets, and the number of valid records in these files. If the directory is missing,
    the next start of the broker creates an empty log.
    """
    from kbroker.storage.errors import StorageError
    from kbroker.storage.naming import META_PROPERTIES, parse_directory_name

    path = directory.resolve()
    topic_partition = parse_directory_name(path.name)
    if topic_partition is None or not (path.parent / META_PROPERTIES).exists():
        raise click.BadParameter(
            f"{directory} is not the directory of a partition in a data directory"
        )
    try:
        row, line = _repair_plan(path)
        question = f"Truncate {path.name} before the damage?"
        if not change.confirm(Preview(question, [row], [line])):
            return
        lines = _repair(path, topic_partition)
    except StorageError as error:
        say(f"kbroker: {error.message}", err=True)
        sys.exit(1)
    change.report([row], lambda _: lines)


def _repair_plan(path: Path) -> tuple[dict[str, object], str]:
    """Return what a repair would do, as a row and as a line; the files are only read.

    Raises:
        StorageError: A file cannot be read.
    """
    from kbroker.storage.files import OsFiles
    from kbroker.storage.naming import LOG
    from kbroker.storage.verify import verify_partition

    row: dict[str, object] = {"partition": path.name, "file": None, "position": None}
    if not path.is_dir():
        return row, f"{path.name}: the directory is missing, and all its records are lost"
    problems = verify_partition(OsFiles(), str(path)).problems
    damage = min(
        (
            (Path(each.path).name, each.position or 0, each.reason)
            for each in problems
            if each.path.endswith(LOG)
        ),
        default=None,
    )
    if damage is None:
        return row, f"{path.name}: no damaged batch found; no record is lost"
    name, position, reason = damage
    later = [each for each in sorted(path.glob(f"*{LOG}")) if each.name >= name]
    size = sum(each.stat().st_size for each in later) - position
    row |= {"file": name, "position": position, "reason": reason, "moved_bytes": size}
    return row, (
        f"{path.name}: {name} is damaged at byte {position} ({reason}); at most {human_size(size)} "
        "from there on are moved to .corrupt files"
    )


def _repair(path: Path, topic_partition: tuple[str, int]) -> list[str]:
    """Repair a partition and return the lines that describe the result.

    Raises:
        StorageError: The files cannot be read or written, or a broker uses them.
    """
    from kbroker.storage.checkpoints import MetaProperties
    from kbroker.storage.errors import StorageError
    from kbroker.storage.files import OsFiles
    from kbroker.storage.log_config import LogConfig
    from kbroker.storage.manager import LogManager
    from kbroker.storage.naming import META_PROPERTIES, PARTITION_METADATA

    now_ms = time.time_ns() // 1_000_000
    meta_path = path.parent / META_PROPERTIES
    meta = MetaProperties.from_bytes(meta_path.read_bytes(), str(meta_path))
    manager = LogManager(OsFiles(), path.parent.as_posix(), meta)
    if topic_partition not in manager:
        lost = manager.forget_missing(topic_partition)
        manager.close(clean=manager.clean, now_ms=now_ms)
        return _loss_lines(path.name, lost)
    ids = {(topic, index): topic_id for topic, index, topic_id in manager.partitions()}
    topic_id = ids[topic_partition]
    if topic_id is None:
        manager.close(clean=manager.clean, now_ms=now_ms)  # keep the state of the last stop
        raise StorageError(
            f"{path}: cannot find its topic ID; restore {PARTITION_METADATA} from a backup or from "
            "another replica"
        )
    repaired = manager.repair_log(
        topic_partition[0], topic_id, topic_partition[1], LogConfig(), now_ms=now_ms
    )
    manager.close(now_ms=now_ms)
    return _repair_lines(path.name, repaired)


def _loss_lines(name: str, known: Offsets) -> list[str]:
    end = max(known.recovery_point, known.high_watermark)
    if end <= known.log_start:
        return [f"{name}: the directory is missing, and the checkpoints list no records of it"]
    return [
        f"{name}: the directory is missing; the next `kbroker serve` creates an empty log",
        f"  lost: offsets {known.log_start} to {end - 1}",
    ]


def _repair_lines(name: str, repaired: RepairResult) -> list[str]:
    start, end = repaired.log.log_start_offset, repaired.log.log_end_offset
    known_end = repaired.known_end
    holds = f"offsets {start} to {end - 1}" if end > start else f"no records, and ends at {end}"
    lines = [f"{name} holds {holds}; `kbroker serve` can open it again"]
    if start > repaired.known_start:
        lines.append(f"  lost: offsets {repaired.known_start} to {start - 1}")
    if known_end > end:
        lines.append(
            f"  lost: offsets {end} to {known_end - 1}, at most {known_end - end:,} records; "
            f"{repaired.readable:,} of them are valid in the .corrupt files"
        )
    else:
        lines.append(f"  lost: no known records; the next offset is {end}")
    return lines + [
        f"  moved to: {path} ({Path(path).stat().st_size:,} bytes)" for path in repaired.quarantined
    ]


@contextmanager
def _reported_import(data_dir: Path, progress: Progress) -> Iterator[None]:
    """Print how to continue an import that is interrupted or fails while it writes."""
    from kbroker.storage.errors import StorageError

    try:
        yield
    except (OSError, StorageError, KeyboardInterrupt):
        progress.clear()
        say(
            f"kbroker: the import into {data_dir} is incomplete, and no broker starts on it; repeat "
            "the command to continue the import",
            err=True,
        )
        raise


@click.command()
@click.argument(
    "sources",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("kbroker-data"),
    show_default=True,
    help="Data directory to create.",
)
@click.option(
    "--node-id", type=click.IntRange(0), default=1, show_default=True, help="ID of the new node."
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Import only this topic, and no groups; can be given several times.",
)
@click.option(
    "--move", is_flag=True, help="Move the files instead of copying; Kafka cannot start again."
)
@click.option(
    "--link", is_flag=True, help="Create hard links to closed segments instead of copying them."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be imported.")
@format_options
def import_kafka(
    sources: tuple[Path, ...],
    data_dir: Path,
    node_id: int,
    topics: tuple[str, ...],
    move: bool,
    link: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Create a data directory from SOURCES, the `log.dirs` of a stopped Apache Kafka (KRaft).

    Topics keep their topic IDs, settings, offsets and leader epochs. Groups and idempotent
    producers continue at their positions. To continue an interrupted import, run the same command
    again.
    """
    import trio

    from kbroker.data_dirs.kafka_import import KafkaImportError, Transfer, import_logs
    from kbroker.data_dirs.kafka_import import plan as make_plan
    from kbroker.protocol.errors import KafkaError

    if move and link:
        raise click.UsageError("--move and --link exclude each other")
    transfer = Transfer.MOVE if move else Transfer.LINK if link else Transfer.COPY
    progress = Progress("bytes imported")
    try:
        plan = make_plan(sources, data_dir, only=topics, transfer=transfer)
        total = plan.bytes

        def show_progress(done: int) -> None:
            progress.show(done, total, time.monotonic())

        async def work() -> None:
            await import_logs(
                plan, data_dir, node_id=node_id, transfer=transfer, progress=show_progress
            )

        if not dry_run:
            with _reported_import(data_dir, progress):
                trio.run(work)
    except (KafkaImportError, KafkaError, OSError, ValueError) as error:
        progress.clear()
        say(f"kbroker: {error}", err=True)
        sys.exit(1)
    progress.clear()
    rows = [
        {"topic": each.name, "partitions": len(each.partitions), "configs": each.configs}
        for each in plan.topics
    ]
    columns = [Column("topic"), Column("partitions"), Column("configs")]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))
    for sentence in plan.not_imported:
        say(f"not imported: {sentence}", err=True)
    if not plan.is_clean:
        say("Kafka was not shut down cleanly; the first start checks all logs", err=True)
    if not dry_run:
        command = f"kbroker serve --data-dir {data_dir}"
        say(command + ("" if node_id == 1 else f" -o node.id={node_id}"), err=True)
