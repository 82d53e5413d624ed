"""Format and topic ID of a topic in a lake.

If a topic is deleted and created again, its offsets start at 0, so its files would get the names of
the old ones. The lake therefore keeps the topic ID. The archiver compares it at its start and
before each commit. The new topic can be archived after the old topic's files were set aside.
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
    """Properties of a topic in the lake that must not change between starts."""

    format: str
    # Empty if the brokers do not support topic IDs.
    topic_id: str

    @staticmethod
    def read(lake: Path, topic: str) -> Settings | None:
        """Return the settings in the lake, or None if it does not contain the topic.

        Raises:
            LakeError: The topic has files but no settings.
        """
        path = _path(lake, topic)
        if path.exists():
            return Settings(**json.loads(path.read_text(encoding="utf-8")))
        if data_files(lake, topic) or poison_files(lake, topic):
            raise LakeError(
                f"{lake / topic} has files, but their settings {path} are missing: restore "
                f"{path.parent}, or archive to a new directory"
            )
        return None

    def write(self, lake: Path, topic: str) -> None:
        """Write the settings to the lake."""
        write_durably(_path(lake, topic), json.dumps(asdict(self)))


class RecreatedTopicError(LakeError):
    """The topic is not the one whose records the lake contains."""

    def __init__(self, lake: Path, topic: str, kept: str, now: str | None) -> None:
        what = f"was created again (its ID is now {now})" if now else "was deleted"
        super().__init__(
            f"topic {topic} {what}; {lake} has records of the topic with ID {kept}. Run "
            f"`kbroker lake set-aside {lake} {topic}` to keep them as {topic}@{kept}; the next "
            "start then archives the new topic from its beginning"
        )


def set_aside(lake: Path, topic: str) -> Path:
    """Rename a topic's part of a lake to ``<topic>@<ID>``.

    If the process is killed, run it again: the archiver's state is renamed last.

    Args:
        lake: Directory of the lake.
        topic: Name of the topic.

    Returns:
        The new directory.

    Raises:
        LakeError: An archiver is running, or the lake does not contain the topic.
    """
    if not _path(lake, topic).exists():
        raise LakeError(f"{lake} does not contain the topic {topic}")
    with topic_lock(lake, topic):
        Commits(lake, topic)
        Merges(lake, topic)
        settings = Settings.read(lake, topic)
        assert settings is not None
        name = f"{topic}@{settings.topic_id or 'old'}"
        for directory in (lake, lake / POISON, lake / PRIVATE):
            if (directory / name).exists() and (directory / topic).exists():
                raise LakeError(f"{directory / name} already exists: rename it first")
            if (directory / topic).exists():
                (directory / topic).rename(directory / name)
    return lake / name


def _path(lake: Path, topic: str) -> Path:
    return lake / PRIVATE / topic / "settings.json"
