"""Release checks: the distributions are valid and work with the lowest and newest dependencies.

They run in fresh environments of every installed Python version; see the soak test `release`.
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


def run_command(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return its output. Fails with the output if the command fails."""
    result = subprocess.run([*command], cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def candidates(minor: int) -> Iterator[str]:
    """Yield paths where Python 3.`minor` may be installed."""
    name = f"python3.{minor}"
    yield from filter(None, [shutil.which(name)])
    yield from map(str, sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")))


def python_of(minor: int) -> str | None:
    """Return a Python 3.`minor` that runs, or None."""
    for path in candidates(minor):
        result = subprocess.run(
            [path, "-c", "import sys; print(sys.version_info.minor)"],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.stdout.strip() == str(minor):
            return path
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source distribution and return their directory."""
    directory = tmp_path_factory.mktemp("dist")
    run_command(sys.executable, "-m", "build", "--outdir", directory, ".")
    return directory


def test_distributions_pass_checks_of_package_index(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [each.suffix for each in files] == [".whl", ".gz"]
    run_command(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_version_matches_changelog(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    version = wheel.name.split("-")[1]
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == version
    assert f'__version__ = "{version}"' in (ROOT / "kbroker/__init__.py").read_text()


def require_python(minor: int) -> str:
    """Return a Python 3.`minor`, or skip the test."""
    python = python_of(minor)
    if python is None:
        print(f"figures: Python 3.{minor} is not installed")
        pytest.skip(f"Python 3.{minor} is not installed")
    return python


def create_environment(directory: Path, python: str) -> tuple[str, tuple[str | Path, ...]]:
    """Create an environment; return its Python and the install command."""
    environment_python = str(directory / "environment/bin/python")
    run_command(*UV, "venv", "--quiet", "--python", python, directory / "environment")
    return environment_python, (*UV, "pip", "install", "--quiet", "--python", environment_python)


def run_smoke_test(environment_python: str, directory: Path, *more: str) -> str:
    """Run the smoke test in an environment and return the installed versions."""
    (directory / "smoke").mkdir()
    return run_command(
        environment_python, "-P", SMOKE, directory / "smoke", *more, cwd=directory
    ).strip()


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
@pytest.mark.parametrize("minor", MINORS)
def test_wheel_works_with_lowest_and_newest_dependencies(
    minor: int, resolution: str, built: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    environment_python, install = create_environment(tmp_path, require_python(minor))
    # lowest-direct takes the newest versions of indirect dependencies.
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    run_command(*install, "--resolution", resolution, "-r", ROOT / "pyproject.toml", *extras)
    run_command(*install, "--no-deps", wheel)
    run_command(*install, "pytest>=8")
    print(
        f"\nfigures: Python 3.{minor}, {resolution}\n{run_smoke_test(environment_python, tmp_path)}"
    )


@pytest.mark.parametrize("minor", MINORS)
def test_source_distribution_works_without_extras(minor: int, built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    environment_python, install = create_environment(tmp_path, require_python(minor))
    run_command(*install, source)
    run_smoke_test(environment_python, tmp_path, "base")
