"""Templates are copied under another name, and the copies pass the linters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import main
from kbroker.pipelines.templates import KINDS, TemplateError, copy_project
from kbroker.pipelines.templates.project import FILES, LAYERS, PLACEHOLDER


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_project_has_own_name_and_all_files(kind: str, tmp_path: Path) -> None:
    directory = copy_project(kind, "shop", tmp_path)
    assert directory == tmp_path / "shop"
    assert {
        *("README.md", "requirements.txt", "pyproject.toml", ".gitignore", "shop.toml"),
        *("shop/__init__.py", "shop/__main__.py", "shop/conf.py", "shop/pipeline.py"),
        *("shop/settings.py", "tests/conftest.py", "tests/test_pipeline.py"),
    } <= files(directory)
    texts = "".join(path.read_text() for path in directory.rglob("*") if path.is_file())
    assert "SHOP_" in texts
    assert PLACEHOLDER not in texts.lower()


def test_help_lists_every_template() -> None:
    assert {path.name for path in FILES.iterdir()} == {"common", "topics", *KINDS}
    assert set(LAYERS) == set(KINDS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Shop", "for example my_shop"),
        ("../shop", "for example shop"),
        ("1", "for example my_pipeline"),
        ("class", "is not a valid name for a Python package"),
        ("json", "a package 'json' already exists"),
        ("kbroker", "for example kbroker_pipeline"),
        ("tests", "choose another name"),
    ],
)
def test_invalid_project_names_are_rejected(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=message):
        copy_project("custom", name, tmp_path / "empty")
    assert list(tmp_path.iterdir()) == []


def test_existing_directory_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    with pytest.raises(TemplateError, match="already exists: choose another name, or delete it"):
        copy_project("custom", "shop", tmp_path)
    assert files(tmp_path) == set()


def test_command_prints_next_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["init", "pipeline", "enrich", "shop"])
    assert done.exit_code == 0, done.output
    assert "cd shop && pip install -r requirements.txt && pytest" in done.output
    again = CliRunner().invoke(main, ["init", "pipeline", "enrich", "shop"])
    assert (again.exit_code, again.output) == (
        1,
        "kbroker init: shop already exists: choose another name, or delete it\n",
    )
    help_text = CliRunner().invoke(main, ["init", "pipeline", "--help"]).output
    assert all(kind in help_text for kind in KINDS)


@pytest.mark.slow
def test_copied_projects_pass_linters(tmp_path: Path) -> None:
    """PySpark may be missing, so its types are not checked here."""
    for kind in KINDS:
        copy_project(kind, f"my_{kind}", tmp_path)
    for kind in KINDS:
        for tool in (["ruff", "check"], ["ruff", "format", "--check"]):
            run_tool(*tool, ".", cwd=tmp_path / f"my_{kind}")
    packages = [part for kind in KINDS for part in ("-p", f"my_{kind}")]
    path = ":".join(str(tmp_path / f"my_{kind}") for kind in KINDS)
    run_tool(
        *("mypy", "--strict", "--ignore-missing-imports", "--allow-subclassing-any"),
        *packages,
        cwd=tmp_path,
        mypy_path=path,
    )


def run_tool(*words: str, cwd: Path, mypy_path: str = "") -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=cwd,
        env={"MYPYPATH": f"{mypy_path}:{root}", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_project_that_cannot_be_written_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = Path.write_text, []

    def write_twice(path: Path, text: str, encoding: str) -> int:
        written.append(path)
        if len(written) == 3:
            raise OSError("the disk is full")
        return write(path, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", write_twice)
    with pytest.raises(OSError, match="the disk is full"):
        copy_project(next(iter(KINDS)), "shop", tmp_path)
    assert not [*tmp_path.iterdir()]
