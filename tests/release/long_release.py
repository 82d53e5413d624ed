"""Release checks: the distributions in `dist` are valid and work with the lowest and newest dependencies.

They run in fresh environments of every installed Python version. `make wheels` builds the distributions
and runs these checks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from release.pythons import MINORS, find_python
from release.sbom import EXTRAS, write_sbom

from ..image.containerfile import ContainerEngine, can_create_containers
from ..repository import ROOT

DIST = ROOT / "dist"
SMOKE = Path(__file__).with_name("smoke.py")
UV = [sys.executable, "-m", "uv"]


def run_command(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return its output. Fails with the output if the command fails."""
    result = subprocess.run([*command], cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_distributions_pass_checks_of_package_index() -> None:
    files = sorted(DIST.iterdir())
    # A pure wheel, and a compiled one for each installed Python version.
    wheels = 1 + sum(find_python(minor) is not None for minor in MINORS)
    assert sorted(each.suffix for each in files) == [".gz", *[".whl"] * wheels]
    run_command(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_sbom_lists_dependencies_of_all_extras(tmp_path: Path) -> None:
    sbom = write_sbom(DIST, tmp_path / "sbom.json")
    names = {each["name"].lower() for each in sbom["components"]}
    assert {"kbroker", "trio", "hypercorn", "protobuf", "cryptography", "trustme"} <= names
    print(f"\nfigures: {len(names)} components in the SBOM")


def require_python(minor: int) -> str:
    """Return a Python 3.`minor`, or skip the test."""
    python = find_python(minor)
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
    return run_command(environment_python, "-P", SMOKE, *more, cwd=directory).strip()


def wheel_of(kind: str, minor: int) -> Path:
    """Return the pure wheel, or the compiled one for Python 3.`minor`."""
    pattern = "*-none-any.whl" if kind == "pure" else f"*-cp3{minor}-*.whl"
    (wheel,) = DIST.glob(pattern)
    return wheel


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("kind", ["pure", "compiled"])
def test_wheel_works_with_lowest_and_newest_dependencies(
    kind: str, minor: int, resolution: str, tmp_path: Path
) -> None:
    environment_python, install = create_environment(tmp_path, require_python(minor))
    # lowest-direct takes the newest versions of indirect dependencies.
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    run_command(*install, "--resolution", resolution, "-r", ROOT / "pyproject.toml", *extras)
    wheel = wheel_of(kind, minor)
    run_command(*install, "--no-deps", wheel)
    run_command(*install, "pytest>=8")
    version = run_command(environment_python, "-I", "-m", "kbroker", "--version")
    assert (", compiled" in version) == (kind == "compiled")
    assert parse_wheel_filename(wheel.name)[1] == Version(version.split()[1].rstrip(","))
    versions = run_smoke_test(environment_python, tmp_path)
    print(f"\nfigures: {kind} wheel, Python 3.{minor}, {resolution}\n{versions}")


@pytest.mark.skipif(not can_create_containers(), reason="containers require root on Linux")
def test_image_contains_compiled_wheel_of_directory(tmp_path: Path) -> None:
    text = (ROOT / "Containerfile").read_text()
    engine = ContainerEngine(tmp_path, ROOT)
    try:
        # The build fails if this step does.
        check = "RUN kbroker --version | grep ', compiled'\n"
        engine.build(text.replace("USER appuser\n", check + "USER appuser\n"), {"WHEELS": "dist"})
    finally:
        engine.close()


@pytest.mark.parametrize("minor", MINORS)
def test_source_distribution_works_without_extras(minor: int, tmp_path: Path) -> None:
    (source,) = DIST.glob("*.tar.gz")
    environment_python, install = create_environment(tmp_path, require_python(minor))
    run_command(*install, source)
    run_smoke_test(environment_python, tmp_path, "base")
