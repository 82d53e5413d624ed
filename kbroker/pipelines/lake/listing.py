"""Listing of a topic's files, which is complete even while an archiver moves or merges them.

The archiver's journals name the work that is not finished, also that of a killed archiver. A
listing treats it as finished: files of a committed batch that were not moved yet are read where
Spark wrote them, and a merged file takes the place of its source files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .commits import JOURNAL, MERGE, Journal, LakeError, path_in_lake
from .layout import PRIVATE, LakeFile, data_files, parsed, poison_files

# Maximum number of attempts, because each change of the files requires another one.
LISTINGS_MAX = 50
_RETRY_SECONDS = 0.1


class Listing(NamedTuple):
    """Files of a topic, sorted by partition and first offset.

    Attributes:
        data: Files with records.
        poison: Files with unreadable records.
    """

    data: list[LakeFile]
    poison: list[LakeFile]


class _Unfinished(NamedTuple):
    """Work of an archiver that is not finished.

    Attributes:
        moves: Current path and target of files.
        replaced: Files to be deleted.
    """

    moves: list[tuple[Path, Path]]
    replaced: list[Path]


def list_files(lake: Path, topic: str) -> Listing:
    """Return the files with all records of the committed batches of a topic, each record once.

    An archiver may move or delete the files before the caller opens them.

    Args:
        lake: Directory of the lake.
        topic: Name of the topic.

    Returns:
        The files.

    Raises:
        LakeError: The files change too fast, or a journal has a path outside the lake.
    """
    for _ in range(LISTINGS_MAX):
        listing = _list_directories(lake, topic)
        unfinished = _unfinished(lake, topic)
        # Work that ended between listing and journals would change the second listing.
        if _list_directories(lake, topic) == listing:
            return _as_finished(lake, topic, listing, unfinished)
        time.sleep(_RETRY_SECONDS)
    raise LakeError(
        f"the files of {topic} in {lake} change while they are listed: stop the archiver, or repeat "
        "the command"
    )


def _list_directories(lake: Path, topic: str) -> Listing:
    return Listing(data_files(lake, topic), poison_files(lake, topic))


def _unfinished(lake: Path, topic: str) -> _Unfinished:
    directory = lake / PRIVATE / topic
    journal, merge = directory / JOURNAL, directory / MERGE
    moves = [
        (path_in_lake(lake, source, journal), path_in_lake(lake, target, journal))
        for source, target in Journal.read(journal).moves
    ]
    try:
        plan: dict[str, Any] = json.loads(merge.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _Unfinished(moves, [])
    new, place, *replaced = (
        path_in_lake(lake, each, merge) for each in (plan["from"], plan["to"], *plan["replaces"])
    )
    return _Unfinished([*moves, (new, place)], replaced)


def _as_finished(lake: Path, topic: str, listing: Listing, unfinished: _Unfinished) -> Listing:
    """Return a listing as it will be after the unfinished work."""
    data = [file for file in listing.data if file.path not in unfinished.replaced]
    poison = list(listing.poison)
    for file, target in _not_moved_yet(listing, unfinished):
        (data if target.is_relative_to(lake / topic) else poison).append(file)
    return Listing(sorted(data), sorted(poison))


def _not_moved_yet(listing: Listing, unfinished: _Unfinished) -> Iterator[tuple[LakeFile, Path]]:
    """Yield the files that are not at their targets, with the targets."""
    there = {file.path for file in (*listing.data, *listing.poison)}
    for source, target in unfinished.moves:
        if target not in there and (file := parsed(target)):
            yield replace(file, path=source), target
