"""The work directory is replaced only when it is a demo's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.demo import DemoError, StartError
from kbroker.demo.directory import Directory, Note, Topics

NOTE = Note(Topics("a", "b", "c"), rows=5, late_rows=0, against=None)


def test_a_new_run_replaces_what_an_earlier_one_left(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "demo")
    directory.renew()
    (directory.path / "broker.log").write_text("old")
    directory.renew()
    assert not (directory.path / "broker.log").exists()
    assert directory.scratch.is_dir()


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    Directory(tmp_path).renew()
    assert (tmp_path / "spark").is_dir()


def test_somebody_elses_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(StartError, match="choose another directory with --dir"):
        Directory(tmp_path).renew()
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_the_note_comes_back_as_it_was(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.renew()
    directory.write_note(NOTE)
    assert directory.read_note() == NOTE


@pytest.mark.parametrize("text", [None, "{}", "not json", "[]", '{"topics": {"x": 1}}'])
def test_without_a_finished_run_there_is_nothing_to_check(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "demo.json").write_text(text)
    with pytest.raises(DemoError, match="run kbroker demo first"):
        Directory(tmp_path).read_note()
