"""`kbroker log`: work on the files of a partition while no broker runs on them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click


@click.group()
def log() -> None:
    """Work on the files of a partition; the broker must not run."""


@log.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def repair(folder: Path) -> None:
    """Keep what is readable before the damage in a partition's FOLDER (data-dir/topic-N).

    The bytes from the damage on are put aside in .corrupt files; nothing is deleted.
    """
    from kbroker.storage.checkpoints import MetaProperties
    from kbroker.storage.errors import StorageError
    from kbroker.storage.files import OsFiles
    from kbroker.storage.log import LogConfig
    from kbroker.storage.manager import LogManager
    from kbroker.storage.naming import CORRUPT, META_PROPERTIES, parse_folder_name

    data_dir = folder.resolve().parent
    named = parse_folder_name(folder.resolve().name)
    meta_path = data_dir / META_PROPERTIES
    if named is None or not meta_path.exists():
        raise click.BadParameter(f"{folder} is not the folder of a partition in a data folder")
    now_ms = time.time_ns() // 1_000_000
    try:
        meta = MetaProperties.from_bytes(meta_path.read_bytes(), str(meta_path))
        manager = LogManager(OsFiles(), data_dir.as_posix(), meta)
        ids = {(topic, index): topic_id for topic, index, topic_id in manager.partitions()}
        topic_id = ids[named]
        if topic_id is None:
            raise StorageError(f"{folder} does not say which topic it belongs to")
        repaired = manager.repair_log(named[0], topic_id, named[1], LogConfig(), now_ms=now_ms)
        start, end = repaired.log_start_offset, repaired.log_end_offset
        manager.close(now_ms=now_ms)
    except StorageError as error:
        click.echo(f"kbroker: {error.message}", err=True)
        sys.exit(1)
    click.echo(f"{folder.name} holds offsets {start} to {end}; `kbroker serve` can open it again")
    for path in sorted(folder.glob(f"*{CORRUPT}")):
        click.echo(f"  put aside: {path} ({path.stat().st_size} bytes)")
