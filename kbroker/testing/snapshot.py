"""What a broker held at one moment, to go back to or to begin from."""

from __future__ import annotations

from pathlib import Path

from kbroker.broker import MEMORY_FOLDER
from kbroker.storage.files import MemFiles

IN_USE = {".lock"}


class Snapshot:
    """The files of a broker in memory, as they were. They are never written to: users fork them."""

    def __init__(self, files: MemFiles) -> None:
        self.files = files

    def save(self, folder: str | Path) -> None:
        """Write it into a new folder, which `kbroker serve --data-dir` can serve as well.

        Raises FileExistsError.
        """
        _write(self.files, MEMORY_FOLDER, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Snapshot:
        """Read what `save`, or a server that was stopped, left in a folder. Raises OSError."""
        files = MemFiles()
        _read(files, MEMORY_FOLDER, Path(folder))
        return cls(files)


def _write(files: MemFiles, path: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in files.listdir(path):
        if files.is_folder(f"{path}/{name}"):
            _write(files, f"{path}/{name}", folder / name)
        elif name not in IN_USE:
            (folder / name).write_bytes(files.read_bytes(f"{path}/{name}"))


def _read(files: MemFiles, path: str, folder: Path) -> None:
    files.mkdir(path)
    for each in sorted(folder.iterdir()):
        if each.is_dir():
            _read(files, f"{path}/{each.name}", each)
        elif each.name not in IN_USE:
            files.open(f"{path}/{each.name}", create=True).append([each.read_bytes()])
