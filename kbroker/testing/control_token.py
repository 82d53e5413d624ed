"""The token that authenticates programs at a control port."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# Random bytes of a token.
_BYTES = 32


class ControlToken(NamedTuple):
    """A token and its file, which only its owner can read."""

    text: str
    file: Path

    def matches_token(self, text: object) -> bool:
        """Return True if `text` is the token. The duration does not depend on `text`."""
        return isinstance(text, str) and secrets.compare_digest(text.encode(), self.text.encode())


@contextmanager
def control_token(file: str | None) -> Iterator[ControlToken]:
    """Yield the token in a file. If the file does not exist, create it with a new token.

    Args:
        file: Path of the file, which is not deleted; None for a temporary file.

    Raises:
        ValueError: The file is empty, is readable for other users, or cannot be created or read.
    """
    if file is not None:
        yield _read_or_create(Path(file).absolute())
        return
    handle, name = tempfile.mkstemp(prefix="kbroker-control-")  # with mode 0600
    path = Path(name)
    try:
        yield ControlToken(_write(handle), path)
    finally:
        path.unlink(missing_ok=True)


def _read_or_create(path: Path) -> ControlToken:
    try:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return ControlToken(_read(path), path)
        return ControlToken(_write(handle), path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"--control-token-file {path}: {reason}; delete the file, or name another one"
        ) from None


def _write(handle: int) -> str:
    token = secrets.token_urlsafe(_BYTES)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(token + "\n")
    return token


def _read(path: Path) -> str:
    # Windows has no such modes: a file inherits the permissions of its directory.
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ValueError("other users than its owner can access it")
    token = path.read_text(encoding="ascii").strip()
    if not token:
        raise ValueError("it is empty")
    return token
