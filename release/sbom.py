"""Writes the software bill of materials (SBOM) of a wheel and the newest versions of its dependencies.

The dependencies are those of all extras but `spark` and `demo`.

Usage: python -m release.sbom DIRECTORY FILE. DIRECTORY contains the pure wheel.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from .wheels import UV, BuildError, commit_time, run_command

EXTRAS = ("cluster", "console", "mcp", "oauth", "otlp", "registry", "testing", "tls")


class Component(TypedDict, total=False):
    """A distribution in an SBOM in CycloneDX's format; only the fields that are read here."""

    name: str
    version: str
    purl: str


class Dependency(TypedDict, total=False):
    """References of a component and of the components that it depends on."""

    ref: str
    dependsOn: list[str]


class Sbom(TypedDict):
    """The fields of an SBOM that are read here."""

    components: list[Component]
    dependencies: list[Dependency]


def write_sbom(directory: Path, file: Path) -> Sbom:
    """Write the SBOM of the pure wheel in a directory, and return it.

    Args:
        directory: Directory of the wheel.
        file: Path of the SBOM.

    Raises:
        BuildError: The wheel cannot be installed, or its SBOM is incomplete.
    """
    (wheel,) = directory.glob("*-none-any.whl")
    version = parse_wheel_filename(wheel.name)[1]
    with tempfile.TemporaryDirectory() as temporary:
        run_command(*UV, "venv", "--quiet", temporary)
        # If installed by its path, the wheel would have no package URL in the SBOM.
        requirement = f"kbroker[{','.join(EXTRAS)}]=={version}"
        install = (*UV, "pip", "install", "--quiet", "--python", temporary, "--no-cache")
        run_command(*install, "--find-links", directory, requirement)
        write = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible")
        run_command(*write, "--output-file", file, temporary, environment=commit_time())
    sbom: Sbom = json.loads(file.read_text())
    if problems := find_problems(sbom, version):
        raise BuildError("\n".join(problems))
    return sbom


def find_problems(sbom: Sbom, version: Version) -> list[str]:
    """Return what an SBOM lacks: kbroker, a dependency, or a version or package URL.

    Args:
        sbom: The SBOM.
        version: Version of kbroker.
    """
    names = {(each["name"], each.get("version")) for each in sbom["components"]}
    problems = [] if ("kbroker", str(version)) in names else [f"kbroker {version} is not listed"]
    problems += [
        f"component {each['name']!r} has no version or no package URL"
        for each in sbom["components"]
        if not (each.get("version") and each.get("purl"))
    ]
    known = {each["ref"] for each in sbom["dependencies"]}
    problems += [
        f"component {needed!r} is required by {each['ref']!r} and is not listed"
        for each in sbom["dependencies"]
        for needed in each.get("dependsOn", [])
        if needed not in known
    ]
    return problems


def main() -> None:
    directory, file = map(Path, sys.argv[1:])
    try:
        sbom = write_sbom(directory.resolve(), file.resolve())
    except BuildError as error:
        sys.exit(f"cannot write the SBOM: {error}")
    print(f"{len(sbom['components'])} components in {file}")


if __name__ == "__main__":
    main()
