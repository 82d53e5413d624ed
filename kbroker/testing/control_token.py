"""The token that a program must know before it may give commands to a server."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_BYTES = 32


class ControlToken(NamedTuple):
    """A token, and the file that only its owner reads it from."""

    text: str
    file: Path

    def matches_token(self, text: object) -> bool:
        """Whether somebody knows the token; how long it takes says nothing about it."""
        return isinstance(text, str) and secrets.compare_digest(text.encode(), self.text.encode())


@contextmanager
def control_token(file: str | None) -> Iterator[ControlToken]:
    """The token of a file, which is made when it is not there, and stays.

    Without a name the file is a new one, which is gone at the end. Raises ValueError where it cannot
    be made or read, where others than its owner can read it, and where it is empty.
    """
    if file is not None:
        yield _of_file(Path(file).absolute())
        return
    handle, name = tempfile.mkstemp(prefix="kbroker-control-")  # which is 0600
    path = Path(name)
    try:
        yield ControlToken(_write(handle), path)
    finally:
        path.unlink(missing_ok=True)


def _of_file(path: Path) -> ControlToken:
    try:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return ControlToken(_read(path), path)
        return ControlToken(_write(handle), path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"--control-token-file {path}: {reason}; remove it, or name another one"
        ) from None


def _write(handle: int) -> str:
    token = secrets.token_urlsafe(_BYTES)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(token + "\n")
    return token


def _read(path: Path) -> str:
    # Windows has no such modes: a file there has the rights of its directory.
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ValueError("others than its owner can use it")
    token = path.read_text(encoding="ascii").strip()
    if not token:
        raise ValueError("it is empty")
    return token
