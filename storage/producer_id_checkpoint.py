"""The checkpoint of the producer IDs that a node has reserved, in each of its log directories.

The cluster metadata holds the same number for all nodes. If an older backup of the metadata is
restored, this file prevents the node from issuing IDs again that its logs may contain.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .checkpoints import offsets_from_bytes, offsets_to_bytes
from .files import Files
from .naming import PRODUCER_IDS

logger = logging.getLogger(__name__)

_ENTRY = ("__producer_ids", 0)


def read_reserved_end(files: Files, data_dirs: Iterable[str]) -> int:
    """Return the first producer ID after those that the node has reserved.

    Args:
        files: File system of the log directories.
        data_dirs: Paths of the log directories.

    Returns:
        The highest number in any of the directories, 0 if none has the file.

    Raises:
        StorageError: A file cannot be read.
    """
    return max((_read(files, f"{path}/{PRODUCER_IDS}") for path in data_dirs), default=0)


def _read(files: Files, path: str) -> int:
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return 0
    offsets = offsets_from_bytes(data, PRODUCER_IDS)
    if offsets is None:
        logger.warning(
            "%s is damaged: if the metadata was restored from an older backup, producer IDs may be "
            "issued again; restore this file from a backup, or remove it",
            path,
        )
        return 0
    return offsets.get(_ENTRY, 0)


def write_reserved_end(files: Files, data_dir: str, end: int) -> None:
    """Store the first producer ID after those that the node has reserved.

    Args:
        files: File system of the log directory.
        data_dir: Path of the log directory.
        end: The producer ID.

    Raises:
        StorageError: The file cannot be written.
    """
    path = f"{data_dir}/{PRODUCER_IDS}"
    files.write_atomic(path, offsets_to_bytes({_ENTRY: end}, PRODUCER_IDS))
