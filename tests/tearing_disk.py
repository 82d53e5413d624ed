"""A disk that writes a part of what is appended, and then takes nothing, not even the removal of that part."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from kbroker.storage import files as files_module
from kbroker.storage.files import Buffer


@contextmanager
def tearing_disk() -> Iterator[None]:
    """Let each append of this process leave its first bytes behind."""

    def write_some(fd: int, parts: Sequence[Buffer]) -> int:
        os.write(fd, bytes(parts[0])[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "_writev", write_some)
        with refusing_cuts():
            yield


@contextmanager
def refusing_cuts() -> Iterator[None]:
    """Let no file of this process be cut."""

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        yield
