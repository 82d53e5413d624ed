"""The work directory is replaced only if the demo created it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.demo import DemoError, StartError
from kbroker.demo.directory import Directory, Note, Topics

from ..brokers import started

NOTE = Note(Topics("a", "b", "c"), rows=5, late_rows=0, against=None)


def test_new_run_replaces_files_of_earlier_run(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "demo")
    directory.renew()
    (directory.path / "broker.log").write_text("old")
    directory.renew()
    assert not (directory.path / "broker.log").exists()
    assert directory.scratch.is_dir()


def test_empty_directory_is_used(tmp_path: Path) -> None:
    Directory(tmp_path).renew()
    assert (tmp_path / "spark").is_dir()


def test_directory_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(StartError, match="choose another directory with --dir"):
        Directory(tmp_path).renew()
    assert (tmp_path / "thesis.txt").read_text() == "precious"


async def test_directory_of_running_broker_is_rejected(tmp_path: Path) -> None:
    """`kbroker demo --keep` leaves its broker running."""
    directory = Directory(tmp_path / "demo")
    directory.renew()
    async with started(directory.path / "broker"):
        with pytest.raises(
            StartError, match=r"A broker is running in .* stop it, or choose another"
        ):
            directory.renew()
        assert (directory.path / "broker" / "meta.properties").exists()
    directory.renew()
    assert not (directory.path / "broker").exists()


def test_note_is_read_as_written(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.renew()
    directory.write_note(NOTE)
    assert directory.read_note() == NOTE


@pytest.mark.parametrize("text", [None, "{}", "not json", "[]", '{"topics": {"x": 1}}'])
def test_check_without_finished_run_fails(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "demo.json").write_text(text)
    with pytest.raises(DemoError, match="run kbroker demo first"):
        Directory(tmp_path).read_note()
