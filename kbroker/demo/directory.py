"""The demo's work directory, and the note in it that says what a run left where."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from . import DemoError, StartError

_NOTE = "demo.json"


@dataclass(frozen=True)
class Topics:
    """The three topics of a run."""

    departures: str
    weather: str
    delays: str


@dataclass(frozen=True)
class Note:
    """What a later check of the same run must know."""

    topics: Topics
    rows: int
    late_rows: int
    against: str | None
    """Another Kafka's address; None when the run had its own broker."""


class Directory:
    """Where a run keeps everything."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @property
    def delays(self) -> Path:
        """Parquet files with the figures of each micro-batch."""
        return self.path / "spark" / "delays"

    @property
    def hours(self) -> Path:
        """Parquet files with the figures by hour of day."""
        return self.path / "spark" / "delays-by-hour"

    @property
    def spark(self) -> Path:
        """Everything that Spark writes."""
        return self.path / "spark"

    @property
    def scratch(self) -> Path:
        """What Spark needs while it runs."""
        return self.spark / "scratch"

    @property
    def chart(self) -> Path:
        """The picture."""
        return self.path / "delays.png"

    def log(self, name: str) -> Path:
        """The log of one of the processes."""
        return self.path / f"{name}.log"

    def renew(self) -> None:
        """Make the directory, empty; what an earlier run of the demo left goes.

        Raises:
            StartError: the directory holds something else.
        """
        if self.path.exists():
            if any(self.path.iterdir()) and not (self.path / _NOTE).exists():
                raise StartError(
                    f"{self.path} is not empty and no earlier demo's: choose another with --dir."
                )
            shutil.rmtree(self.path)
        self.scratch.mkdir(parents=True)
        (self.path / _NOTE).write_text("{}", encoding="utf-8")

    def write_note(self, note: Note) -> None:
        """Remember a finished run."""
        text = json.dumps(asdict(note), indent=2)
        (self.path / _NOTE).write_text(text + "\n", encoding="utf-8")

    def read_note(self) -> Note:
        """What an earlier run left here.

        Raises:
            DemoError: no finished run did.
        """
        try:
            fields = json.loads((self.path / _NOTE).read_text(encoding="utf-8"))
            return Note(**{**fields, "topics": Topics(**fields["topics"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DemoError(
                f"No finished run of the demo lies in {self.path}: run kbroker demo first."
            ) from error
