"""Bytes of a failed append that could not be removed immediately.

These bytes never end up between batches, and no clean shutdown keeps them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.storage.errors import WriteRefusedError
from kbroker.storage.files import OsFiles
from kbroker.storage.log import Log
from kbroker.storage.manager import LogManager

from ..tearing_disk import refusing_truncation, tearing_disk
from .helpers import NOW, append, commit, open_log, open_manager, values

# A shutdown seals the active segment, unless the log is short enough to be read at the start.
BOTH_ENDS = pytest.mark.parametrize("records", [1, 30], ids=["short log", "segment is sealed"])


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    return open_manager(OsFiles(), (tmp_path / "data").as_posix())


def torn_log(manager: LogManager, records: int = 1) -> Log:
    """Return a log with some records and a partial batch at the end of its file."""
    log = open_log(manager)
    for _ in range(records):
        append(log, b"kept")
    commit(log)
    with tearing_disk(), pytest.raises(WriteRefusedError):
        append(log, b"refused")
    assert log.segments[-1].file.opened is not None
    assert log.segments[-1].file.opened.is_torn
    return log


def reopen(manager: LogManager) -> tuple[LogManager, Log]:
    following = open_manager(manager.files, manager.data_dir)
    return following, open_log(following)


@BOTH_ENDS
def test_clean_shutdown_truncates_torn_bytes(manager: LogManager, records: int) -> None:
    torn_log(manager, records)
    manager.close(now_ms=NOW)
    following, log = reopen(manager)
    assert following.clean
    assert (log.offline, values(log)) == (None, [b"kept"] * records)


@BOTH_ENDS
def test_shutdown_with_torn_bytes_is_not_clean(manager: LogManager, records: int) -> None:
    torn_log(manager, records)
    with refusing_truncation():
        manager.close(now_ms=NOW)
    following, log = reopen(manager)
    assert not following.clean
    assert (log.offline, values(log)) == (None, [b"kept"] * records)


def test_segment_with_torn_bytes_is_not_sealed(manager: LogManager) -> None:
    log = torn_log(manager)
    large = b"x" * 1900  # needs a new segment
    with refusing_truncation(), pytest.raises(WriteRefusedError):
        append(log, large)
    assert len(log.segments) == 1
    append(log, large)
    commit(log)
    assert len(log.segments) == 2
    manager.close(now_ms=NOW)
    _, log = reopen(manager)
    assert (log.offline, values(log)) == (None, [b"kept", large])


def test_file_with_torn_bytes_is_not_closed(manager: LogManager) -> None:
    log = torn_log(manager)
    file = log.segments[-1].file
    with refusing_truncation():
        assert not file.close_if_idle(at_once=True)
    assert file.close_if_idle(at_once=True)
    manager.close(now_ms=NOW)
    following, log = reopen(manager)
    assert following.clean
    assert (log.offline, values(log)) == (None, [b"kept"])
