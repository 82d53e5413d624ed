"""A disk that writes a part of each append and then fails, even for the truncation of that part."""

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
    """Make each append of this process write its first bytes only."""

    def write_some(fd: int, parts: Sequence[Buffer]) -> int:
        os.write(fd, bytes(parts[0])[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "_writev", write_some)
        with refusing_truncation():
            yield


@contextmanager
def refusing_truncation() -> Iterator[None]:
    """Make truncation fail for all files of this process."""

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        yield
