"""Work directory of the demo, with a note about the last run."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

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
    """Properties of a run that a later check needs."""

    topics: Topics
    rows: int
    late_rows: int
    # Address of another Kafka cluster; None if the run had its own broker.
    against: str | None


class Directory:
    """Directory with all files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @property
    def delays(self) -> Path:
        """Parquet files with the results of each micro-batch."""
        return self.path / "spark" / "delays"

    @property
    def hours(self) -> Path:
        """Parquet files with the results by hour of day."""
        return self.path / "spark" / "delays-by-hour"

    @property
    def spark(self) -> Path:
        """Directory for all output of Spark."""
        return self.path / "spark"

    @property
    def scratch(self) -> Path:
        """Temporary directory of Spark."""
        return self.spark / "scratch"

    @property
    def chart(self) -> Path:
        """Image file of the chart."""
        return self.path / "delays.png"

    def log(self, name: str) -> Path:
        """Return the log file of one of the processes."""
        return self.path / f"{name}.log"

    def renew(self) -> None:
        """Create the directory, or delete the content of an earlier run.

        Raises:
            StartError: The directory contains other files, or a running broker uses it.
        """
        if self.path.exists():
            if any(self.path.iterdir()) and not (self.path / _NOTE).exists():
                raise StartError(
                    f"{self.path} contains files of something else: choose another directory with "
                    "--dir."
                )
            self._check_broker()
            shutil.rmtree(self.path)
        self.scratch.mkdir(parents=True)
        (self.path / _NOTE).write_text("{}", encoding="utf-8")

    def _check_broker(self) -> None:
        """Raise StartError if the broker of an earlier run still uses its data directory."""
        lock = self.path / "broker" / ".lock"
        if not lock.exists():
            return
        try:
            with FileLock(lock, timeout=0):
                pass
        except Timeout:
            raise StartError(
                f"A broker is running in {self.path}, for example that of kbroker demo --keep: stop it, "
                "or choose another directory with --dir."
            ) from None

    def write_note(self, note: Note) -> None:
        """Save the properties of a finished run."""
        text = json.dumps(asdict(note), indent=2)
        (self.path / _NOTE).write_text(text + "\n", encoding="utf-8")

    def read_note(self) -> Note:
        """Return the properties of an earlier run.

        Raises:
            DemoError: The directory has no finished run.
        """
        try:
            fields = json.loads((self.path / _NOTE).read_text(encoding="utf-8"))
            return Note(**{**fields, "topics": Topics(**fields["topics"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DemoError(
                f"{self.path} contains no finished run of the demo: run kbroker demo first."
            ) from error
