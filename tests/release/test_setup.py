"""Sources of compiled modules: `setup.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from ..repository import ROOT

PACKAGES = ("kbroker", "protocol", "storage", "coordinator")
# Runs the function of setup.py without building.
SCRIPT = """
import pathlib, setuptools, sys
setuptools.setup = lambda **options: None
import setup
setup.copy_as_installed(pathlib.Path(sys.argv[1]))
"""


def copy_as_installed(project: Path, directory: Path) -> set[Path]:
    """Copy the packages of a project into a directory and return their modules."""
    subprocess.run([sys.executable, "-c", SCRIPT, directory], cwd=project, check=True)
    return {each.relative_to(directory) for each in directory.rglob("*.py")}


def copy_without_links(project: Path) -> None:
    """Copy this project as a source distribution has it."""
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, project)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, project / package, symlinks=True)
    for package in PACKAGES[1:]:
        (project / "kbroker" / package).unlink()


def test_source_distribution_has_all_sources_of_compiled_modules(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    copy_without_links(project)
    expected = copy_as_installed(ROOT, tmp_path / "expected")
    assert Path("kbroker/protocol/messages/produce.py") in expected
    assert copy_as_installed(project, tmp_path / "copied") == expected


def test_setup_runs_with_older_python_so_that_pip_names_the_required_one(tmp_path: Path) -> None:
    (tmp_path / "tomllib.py").write_text("raise ModuleNotFoundError")
    script = """
import contextlib, setuptools
del contextlib.chdir
setuptools.setup = lambda **options: None
import setup
"""
    environment = {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, env=environment)
