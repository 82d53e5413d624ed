"""Paths that data contains."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.text.below import below


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (tmp_path / "root-beside").mkdir()
    (root / "out").symlink_to(tmp_path / "root-beside")
    (root / "in").symlink_to(root / "inside")
    (root / "there").symlink_to("back")
    (root / "back").symlink_to("there")
    (root / "self").symlink_to("self/below")
    return root


@pytest.mark.parametrize("relative", ["x", "inside/x", "inside/../x", "in/x", "./inside", "a/b/c"])
def test_path_below_directory_is_accepted(root: Path, relative: str) -> None:
    assert below(root, relative) == root / relative


@pytest.mark.parametrize(
    "relative",
    [
        "",
        ".",
        "..",
        "../root",
        "../root-beside",
        "inside/../../x",
        "/",
        "/etc/passwd",
        "out/x",
        "out",
    ],
)
def test_path_outside_directory_is_rejected(root: Path, relative: str) -> None:
    with pytest.raises(ValueError, match="is not below"):
        below(root, relative)


@pytest.mark.parametrize(
    "relative", ["there", "there/x", "self", "inside/../back/x", "new/../there"]
)
def test_loop_of_symbolic_links_is_rejected(root: Path, relative: str) -> None:
    with pytest.raises(ValueError, match="contains a loop of symbolic links"):
        below(root, relative)
