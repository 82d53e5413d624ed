"""Completion of a copy of a log directory that was taken while its owner runs.

The files of a directory in use lag behind the state in memory: the next checkpoint writes offsets,
epochs and producers. `complete_copy` writes them into the copy, which then opens as after a clean
shutdown. Nothing is synced for it.

A copy may share the files of closed segments (hard links), because those never change.
`close_active_segment` closes the active segment for appends.
"""

from __future__ import annotations

from .checkpoints import OffsetCheckpoints, Offsets, clean_marker
from .files import Files
from .index import aborted_bytes
from .log import Log
from .manager import LogManager
from .naming import CLEAN_SHUTDOWN, LEADER_EPOCHS, SNAPSHOT, TXN_INDEX, directory_name, file_name
from .sync import write_ahead


def close_active_segment(log: Log) -> None:
    """Close the active segment for appends if it has records, and write the index files.

    A new empty segment becomes active. Must not run during a checkpoint. Raises StorageError.
    """
    if log.offline is not None or log.active is None:
        return
    log.roll()
    items, _ = log.take_checkpoint_work()
    write_ahead(items)
    log.requeue()  # the next checkpoint makes them durable


def complete_copy(files: Files, directory: str, manager: LogManager) -> None:
    """Write the files of a clean shutdown into a copy of a log directory.

    Args:
        files: File system of the copy.
        directory: Path of the copy, which has the current files.
        manager: Owner of the original. If it has unopened or offline partitions, these are not
            changed, and the copy opens as after a crash.

    Raises:
        StorageError: A file cannot be written.
    """
    online = [log for log in manager if log.offline is None]
    copied = [log for log in online if files.exists(f"{directory}/{_name(log)}")]
    for log in copied:
        path = f"{directory}/{_name(log)}"
        files.write_atomic(f"{path}/{LEADER_EPOCHS}", log.epochs.to_bytes())
        producers = file_name(log.log_end_offset, SNAPSHOT)
        files.write_atomic(f"{path}/{producers}", log.producers.to_bytes())
        for segment in log.segments:
            if segment.aborted.in_memory and segment.aborted.entries:
                data = aborted_bytes(segment.aborted.entries)
                files.write_atomic(f"{path}/{file_name(segment.base_offset, TXN_INDEX)}", data)
    checkpoints = OffsetCheckpoints(files, directory)
    checkpoints.update(((log.topic, log.partition), _offsets(log)) for log in copied)
    known = {(log.topic, log.partition) for log in online}
    if manager.failed is None and known.issuperset(manager.directories()):
        files.write_atomic(f"{directory}/{CLEAN_SHUTDOWN}", clean_marker(checkpoints.checksums()))


def _name(log: Log) -> str:
    return directory_name(log.topic, log.partition)


def _offsets(log: Log) -> Offsets:
    return Offsets(
        log.log_start_offset, log.log_end_offset, log.high_watermark, log.first_dirty_offset
    )
