"""A copy of a data directory that was taken while its owner runs: what makes it a whole one.

The files of a directory that is in use are behind what its logs know: offsets, epochs and producers are
written by the next checkpoint. `complete` writes them into the copy, which opens as if its owner had
been stopped properly. Nothing is synced for it: a copy is as durable as its bytes are.

A copy may share the files of closed segments (hard links): those never change. `seal` closes the one
that does.
"""

from __future__ import annotations

from .checkpoints import OffsetCheckpoints, Offsets, clean_marker
from .files import Files
from .index import aborted_bytes
from .log import Log
from .manager import LogManager
from .naming import CLEAN_SHUTDOWN, LEADER_EPOCHS, SNAPSHOT, TXN_INDEX, directory_name, file_name
from .sync import write_ahead


def seal(log: Log) -> None:
    """Close the active segment, if it has records, and bring the index files up to date.

    An empty segment follows it. Not while a checkpoint runs. Raises StorageError.
    """
    if log.offline is not None or log.active is None:
        return
    log.roll()
    items, _ = log.unsettled()
    write_ahead(items)
    log.put_back()  # the next checkpoint makes them durable


def complete(files: Files, directory: str, manager: LogManager) -> None:
    """Write into a copy of a data directory what a clean stop of its owner would leave there.

    Parameters:
        files: where the copy is.
        directory: the copy; it has the files of this moment.
        manager: the owner. Partitions that it has not opened, or that are offline, stay as they
            are, and the copy counts as left by a crash then.

    Raises:
        StorageError: the system refuses.
    """
    sound = [log for log in manager if log.offline is None]
    stored = [log for log in sound if files.exists(f"{directory}/{_name(log)}")]
    for log in stored:
        path = f"{directory}/{_name(log)}"
        files.write_atomic(f"{path}/{LEADER_EPOCHS}", log.epochs.to_bytes())
        producers = file_name(log.log_end_offset, SNAPSHOT)
        files.write_atomic(f"{path}/{producers}", log.producers.to_bytes())
        for segment in log.segments:
            if segment.aborted.in_memory and segment.aborted.entries:
                data = aborted_bytes(segment.aborted.entries)
                files.write_atomic(f"{path}/{file_name(segment.base_offset, TXN_INDEX)}", data)
    checkpoints = OffsetCheckpoints(files, directory)
    checkpoints.update(((log.topic, log.partition), _offsets(log)) for log in stored)
    known = {(log.topic, log.partition) for log in sound}
    if manager.failed is None and known.issuperset(manager.directories()):
        files.write_atomic(f"{directory}/{CLEAN_SHUTDOWN}", clean_marker(checkpoints.checksums()))


def _name(log: Log) -> str:
    return directory_name(log.topic, log.partition)


def _offsets(log: Log) -> Offsets:
    return Offsets(
        log.log_start_offset, log.log_end_offset, log.high_watermark, log.first_dirty_offset
    )
