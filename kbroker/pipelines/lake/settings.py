"""What a lake holds of a topic: its format, and which topic of that name it is.

A topic that is deleted and made again begins at offset 0 again, so its records would get the names of
the old files. Brokers give each topic an id of its own; the lake keeps it, and the archiver compares
it at its start and before each commit. The new topic gets into the lake when the old one's files have
been set aside.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .commits import Commits, LakeError, write_durably
from .layout import POISON, PRIVATE, data_files, poison_files
from .locking import topic_lock
from .merging import Merges


@dataclass(frozen=True)
class Settings:
    """What must not change from one start to the next."""

    format: str
    topic_id: str
    """Empty where brokers give none."""

    @staticmethod
    def read(lake: Path, topic: str) -> Settings | None:
        """What the lake has; None when it has nothing of this topic.

        Raises:
            LakeError: there are files of the topic, but nobody knows how far they go.
        """
        path = _path(lake, topic)
        if path.exists():
            return Settings(**json.loads(path.read_text(encoding="utf-8")))
        if data_files(lake, topic) or poison_files(lake, topic):
            raise LakeError(
                f"{lake / topic} has files but {path} is gone, which says what they are: put "
                f"{path.parent} back, or archive to a new directory"
            )
        return None

    def write(self, lake: Path, topic: str) -> None:
        """Keep them."""
        write_durably(_path(lake, topic), json.dumps(asdict(self)))


class MadeAgainError(LakeError):
    """The topic is not the one whose records the lake has."""

    def __init__(self, lake: Path, topic: str, kept: str, now: str | None) -> None:
        what = f"was made again (its id is {now} now)" if now else "was deleted"
        super().__init__(
            f"the topic {topic} {what}; {lake} has records of the one with the id {kept}. "
            f"`kbroker lake set-aside {lake} {topic}` keeps them as {topic}@{kept}, and the next "
            "start begins anew"
        )


def set_aside(lake: Path, topic: str) -> Path:
    """Rename what a lake has of a topic to ``<topic>@<id>``; returns the new directory.

    A kill in the middle is no harm: what the archiver knows is renamed last, so do it again.

    Raises:
        LakeError: an archiver is at work, or the lake has nothing of the topic.
    """
    if not _path(lake, topic).exists():
        raise LakeError(f"{lake} has nothing of a topic {topic}")
    with topic_lock(lake, topic):
        Commits(lake, topic)
        Merges(lake, topic)
        settings = Settings.read(lake, topic)
        assert settings is not None
        name = f"{topic}@{settings.topic_id or 'old'}"
        for directory in (lake, lake / POISON, lake / PRIVATE):
            if (directory / name).exists() and (directory / topic).exists():
                raise LakeError(f"{directory / name} is there already: rename it first")
            if (directory / topic).exists():
                (directory / topic).rename(directory / name)
    return lake / name


def _path(lake: Path, topic: str) -> Path:
    return lake / PRIVATE / topic / "settings.json"
