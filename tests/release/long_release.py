"""A release: what is built passes the index's checks and works with the lowest and newest dependencies.

Fresh environments of every Python that is on this machine; see soak.toml.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
MINORS = (11, 12, 13, 14)
EXTRAS = ("cluster", "console", "oauth", "otlp", "registry", "testing", "tls")
UV = [sys.executable, "-m", "uv"]


def done(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command; what it printed. Fails with that when the command does."""
    ended = subprocess.run([*command], cwd=cwd, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def candidates(minor: int) -> Iterator[str]:
    """Where a Python of 3.`minor` may be."""
    name = f"python3.{minor}"
    yield from filter(None, [shutil.which(name)])
    yield from map(str, sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")))


def python_of(minor: int) -> str | None:
    """A Python of 3.`minor` that runs; None where there is none."""
    for path in candidates(minor):
        asked = subprocess.run(
            [path, "-c", "import sys; print(sys.version_info.minor)"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() == str(minor):
            return path
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution."""
    directory = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--outdir", directory, ".")
    return directory


def test_the_distributions_pass_the_checks_of_an_index(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [each.suffix for each in files] == [".whl", ".gz"]
    done(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_the_version_is_the_one_of_the_changes(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    version = wheel.name.split("-")[1]
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == version
    assert f'__version__ = "{version}"' in (ROOT / "kbroker/__init__.py").read_text()


def found_python(minor: int) -> str:
    """A Python of 3.`minor`; the test is left out where there is none."""
    python = python_of(minor)
    if python is None:
        print(f"figures: Python 3.{minor} is not here")
        pytest.skip(f"Python 3.{minor} is not here")
    return python


def made(directory: Path, python: str) -> tuple[str, tuple[str | Path, ...]]:
    """The Python of a new environment, and the command that installs there."""
    own = str(directory / "environment/bin/python")
    done(*UV, "venv", "--quiet", "--python", python, directory / "environment")
    return own, (*UV, "pip", "install", "--quiet", "--python", own)


def smoked(own: str, directory: Path, *more: str) -> str:
    """The small test of what is installed; the versions that it tells."""
    (directory / "smoke").mkdir()
    return done(own, "-P", SMOKE, directory / "smoke", *more, cwd=directory).strip()


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
@pytest.mark.parametrize("minor", MINORS)
def test_it_works_where_it_is_installed(
    minor: int, resolution: str, built: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    own, install = made(tmp_path, found_python(minor))
    # What pyproject.toml names is what has to be the lowest; of what comes with it uv takes the newest.
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    done(*install, "--resolution", resolution, "-r", ROOT / "pyproject.toml", *extras)
    done(*install, "--no-deps", wheel)
    done(*install, "pytest>=8")
    print(f"\nfigures: Python 3.{minor}, {resolution}\n{smoked(own, tmp_path)}")


@pytest.mark.parametrize("minor", MINORS)
def test_the_source_distribution_works_without_extras(
    minor: int, built: Path, tmp_path: Path
) -> None:
    (source,) = built.glob("*.tar.gz")
    own, install = made(tmp_path, found_python(minor))
    done(*install, source)
    smoked(own, tmp_path, "base")
