"""Missing files and directories: lost records are reported, and the rest is not served silently."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kbroker.storage.checkpoints import OffsetCheckpoints
from kbroker.storage.errors import CorruptLogError, StorageError
from kbroker.storage.files import Files, OsFiles
from kbroker.storage.log import Log
from kbroker.storage.naming import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

from .helpers import NOW, SMALL, TOPIC_ID, append, commit, open_log, open_manager, values

Place = tuple[Files, str]
COUNT = 100


def write_log(place: Place, *, clean: bool, start: int = 0) -> list[str]:
    """Write a log of several segments, stop or crash, and return the names of its segments."""
    files, data_dir = place
    manager = open_manager(files, data_dir)
    log = open_log(manager)
    for number in range(COUNT):
        append(log, b"value %d" % number)
    commit(log)
    log.delete_records_before(start)
    manager.checkpoint(NOW).run()
    manager.close(clean=clean, now_ms=NOW)
    names = [name for name in files.listdir(f"{data_dir}/orders-0") if name.endswith(".log")]
    assert len(names) > 2
    return names


def log_of(place: Place) -> Log:
    return open_log(open_manager(*place))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("start", [0, 30])
def test_log_without_one_of_its_segments_is_offline(
    place: Place, clean: bool, number: int, start: int
) -> None:
    names = write_log(place, clean=clean, start=start)
    place[0].remove(f"{place[1]}/orders-0/{names[number]}")
    with pytest.raises(CorruptLogError, match="kbroker log repair"):
        log_of(place)


@pytest.mark.parametrize("clean", [True, False])
def test_log_start_at_a_segment_without_checkpoint_is_served_as_kafka_leaves_it(
    place: Place, clean: bool
) -> None:
    files, data_dir = place
    names = write_log(place, clean=clean)
    start = int(names[1].removesuffix(".log"))
    manager = open_manager(files, data_dir)
    open_log(manager).delete_records_before(start)
    manager.checkpoint(NOW).run()
    manager.close(clean=clean, now_ms=NOW)
    files.remove(f"{data_dir}/{LOG_STARTS}")
    log = log_of(place)
    assert log.log_start_offset == start
    assert values(log) == [b"value %d" % number for number in range(start, COUNT)]


@pytest.mark.parametrize("clean", [True, False])
def test_repair_of_a_log_without_its_first_segment_says_what_is_lost(
    place: Place, clean: bool
) -> None:
    files, data_dir = place
    names = write_log(place, clean=clean)
    files.remove(f"{data_dir}/orders-0/{names[0]}")
    manager = open_manager(files, data_dir)
    repaired = manager.repair_log("orders", TOPIC_ID, 0, SMALL, now_ms=NOW)
    start = int(names[1].removesuffix(".log"))
    assert (repaired.known_start, repaired.log.log_start_offset) == (0, start)
    manager.close(now_ms=NOW)
    assert values(log_of(place)) == [b"value %d" % number for number in range(start, COUNT)]


@pytest.mark.parametrize("clean", [True, False])
def test_missing_directory_is_offline_until_it_is_accepted(place: Place, clean: bool) -> None:
    files, data_dir = place
    write_log(place, clean=clean)
    files.rmtree(f"{data_dir}/orders-0")
    manager = open_manager(files, data_dir)
    with pytest.raises(CorruptLogError, match=f"missing.* offset {COUNT} was synced"):
        open_log(manager)
    assert manager.forget_missing(("orders", 0)).recovery_point == COUNT
    assert open_log(manager).log_end_offset == 0


@pytest.mark.parametrize("clean", [True, False])
def test_missing_directory_and_recovery_points_are_named(
    place: Place, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files, data_dir = place
    write_log(place, clean=clean)
    files.rmtree(f"{data_dir}/orders-0")
    files.remove(f"{data_dir}/{RECOVERY_POINTS}")
    log_of(place)
    assert f"orders-0 starts empty, although consumers could read offsets 0 to {COUNT - 1}" in (
        caplog.text
    )
    assert (f"{RECOVERY_POINTS} changed after the last clean stop" in caplog.text) == clean


@pytest.mark.parametrize("name", [RECOVERY_POINTS, HIGH_WATERMARKS])
def test_older_checkpoint_after_a_clean_stop_is_named(
    place: Place, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    files, data_dir = place
    manager = open_manager(files, data_dir)
    append(open_log(manager), b"early")
    commit(open_log(manager))
    manager.close(now_ms=NOW)
    older = files.read_bytes(f"{data_dir}/{name}")
    write_log(place, clean=True)
    files.write_atomic(f"{data_dir}/{name}", older)
    manager = open_manager(files, data_dir)
    assert not manager.clean
    assert f"{name} changed after the last clean stop" in caplog.text
    assert len(values(open_log(manager))) == COUNT + 1


def test_checkpoints_under_each_others_names_give_up_no_record(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    files, data_dir = place
    write_log(place, clean=True, start=30)
    one, two = (f"{data_dir}/{name}" for name in ("log-start-offset-checkpoint", RECOVERY_POINTS))
    data = files.read_bytes(one), files.read_bytes(two)
    files.write_atomic(one, data[1])
    files.write_atomic(two, data[0])
    assert values(log_of(place))[-70:] == [b"value %d" % number for number in range(30, COUNT)]
    assert f"{one} is damaged" in caplog.text


def test_log_that_lost_records_consumers_could_read_is_named(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    files, data_dir = place
    names = write_log(place, clean=False)
    checkpoints = OffsetCheckpoints(files, data_dir)
    key = ("orders", 0)
    checkpoints.update([(key, checkpoints.get(key)._replace(recovery_point=0))])
    files.remove(f"{data_dir}/orders-0/{names[-1]}")
    log = log_of(place)
    assert f"consumers could read up to offset {COUNT - 1}: " in caplog.text
    assert f"{COUNT - log.log_end_offset} records are lost" in caplog.text


def file_instead(directory: Path) -> None:
    directory.rename(directory.with_name("away"))
    directory.write_text("no directory")


def link_to_itself(directory: Path) -> None:
    directory.rename(directory.with_name("away"))
    directory.symlink_to(directory)


def cannot_be_listed(error: int) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def plant(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("listdir", "scandir", "open"):
            real = getattr(os, name)

            def refuse(
                path: object = ".", *args: object, real: Callable[..., object] = real, **kw: object
            ) -> object:
                if str(path).startswith(str(directory)):
                    raise OSError(error, os.strerror(error), str(path))
                return real(path, *args, **kw)

            monkeypatch.setattr(os, name, refuse)

    return plant


def ignore_patch(plant: Callable[[Path], None]) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda directory, _: plant(directory)


UNREADABLE: Sequence[Callable[[Path, pytest.MonkeyPatch], None]] = (
    ignore_patch(file_instead),
    ignore_patch(link_to_itself),
    cannot_be_listed(errno.EACCES),
    cannot_be_listed(errno.EIO),
    cannot_be_listed(errno.ENAMETOOLONG),
)


@pytest.mark.parametrize("plant", UNREADABLE)
@pytest.mark.parametrize("clean", [True, False])
def test_unreadable_directory_takes_only_its_partition_offline(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Path, pytest.MonkeyPatch], None],
    clean: bool,
) -> None:
    place = OsFiles(), (tmp_path / "data").as_posix()
    write_log(place, clean=clean)
    manager = open_manager(*place)
    append(open_log(manager, "other"), b"x")
    commit(open_log(manager, "other"))
    manager.close(clean=clean, now_ms=NOW)
    with monkeypatch.context() as patch:
        plant(tmp_path / "data" / "orders-0", patch)
        manager = open_manager(*place)
        manager.sync_recovered()
        assert ("orders", 0, None) in manager.partitions()
        with pytest.raises(StorageError, match=r"orders-0.*unchanged; .*from a backup"):
            open_log(manager)
        assert values(open_log(manager, "other")) == [b"x"]
        manager.move_aside([("orders", 0)])
        manager.close(now_ms=NOW)


def test_foreign_segment_after_the_recovery_point_is_kept_with_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches with lower offsets are not a torn end: another segment's file was put there."""
    files, data_dir = place
    names = write_log(place, clean=False)
    key, directory = ("orders", 0), f"{data_dir}/orders-0"
    checkpoints = OffsetCheckpoints(files, data_dir)
    checkpoints.update([(key, checkpoints.get(key)._replace(recovery_point=0, high_watermark=0))])
    other = files.read_bytes(f"{directory}/{names[0]}")
    files.write_atomic(f"{directory}/{names[-1]}", other)
    log = log_of(place)
    assert log.log_end_offset == int(names[-1].removesuffix(".log"))
    (kept,) = [name for name in files.listdir(directory) if name.endswith(".corrupt")]
    assert files.read_bytes(f"{directory}/{kept}") == other
    assert f"unsynced records to {directory}/{kept}" in caplog.text


# -- files that are lost while the broker runs


def lose_directory(log: Log) -> None:
    shutil.rmtree(log.directory)


def lose_active_file(log: Log) -> None:
    assert log.active is not None
    assert log.active.file.close_if_idle(at_once=True)
    os.unlink(log.active.log_path)


def fill_segment(log: Log) -> None:
    """Append until the log needs a new segment. An open file is still written without its name."""
    for _ in range(COUNT):
        append(log, b"value")


@pytest.mark.parametrize("lose", [lose_directory, lose_active_file])
def test_append_to_lost_file_is_rejected_as_damage(
    tmp_path: Path, lose: Callable[[Log], None]
) -> None:
    manager = open_manager(OsFiles(), tmp_path.as_posix())
    log = open_log(manager)
    append(log, b"x")
    commit(log)
    lose(log)
    with pytest.raises(CorruptLogError, match="missing"):
        fill_segment(log)


def test_checkpoint_of_log_without_directory_takes_only_this_log_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = open_manager(OsFiles(), tmp_path.as_posix())
    lost, other = open_log(manager), open_log(manager, "other")
    for log in (lost, other):
        append(log, b"x")
        commit(log)
        log.save()
    lose_directory(lost)
    manager.checkpoint(NOW).run()
    assert lost.offline is not None
    assert "is missing" in lost.offline
    assert lost.offline in caplog.text
    assert other.offline is None
    points = OffsetCheckpoints(OsFiles(), tmp_path.as_posix())
    assert points.get(("other", 0)).recovery_point == 1
