"""Version bounds in pyproject.toml: no versions with known vulnerabilities are allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from ..repository import ROOT

# Vulnerable versions: the last one before each fix, and earlier ones.
VULNERABLE = {
    "cryptography": ("42.0.0", "44.0.0", "46.0.4"),  # CVE-2024-12797, CVE-2026-26007
    "filelock": ("3.12.0", "3.20.0", "3.20.2"),  # CVE-2025-68146, CVE-2026-22701
    "h11": ("0.14.0", "0.15.0"),  # CVE-2025-43859
    "h2": ("4.1.0", "4.2.0"),  # CVE-2025-57804
    "joserfc": ("1.0.0", "1.4.1", "1.6.2"),  # CVE-2025-65015, CVE-2026-27932
    "protobuf": ("5.29.4", "6.31.0", "5.29.5", "6.33.4"),  # CVE-2025-4565, CVE-2026-0994
    "setuptools": ("77.0.1", "78.1.0"),  # CVE-2025-47273
    "starlette": ("0.40.0", "0.47.1", "0.49.0"),  # CVE-2025-54121, CVE-2025-62727
}


def requirements() -> Iterator[Requirement]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found = tomllib.load(file)
    project = found["project"]
    named = [*found["build-system"]["requires"], *project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        named += extra
    yield from map(Requirement, named)


@pytest.mark.parametrize("name", sorted(VULNERABLE))
def test_vulnerable_versions_are_not_allowed(name: str) -> None:
    found = [each for each in requirements() if each.name == name]
    assert found, f"{name} is not a requirement"
    for each in found:
        allowed = [
            vulnerable for vulnerable in VULNERABLE[name] if each.specifier.contains(vulnerable)
        ]
        assert allowed == [], str(each)


# Libraries whose undocumented modules kbroker imports, with one of these modules.
UNDOCUMENTED = {"hypercorn": "hypercorn.trio.tcp_server"}
SPARK = ROOT / "tests/spark/requirements.txt"


@pytest.mark.parametrize("name", UNDOCUMENTED)
def test_library_with_imported_undocumented_modules_has_upper_bound(name: str) -> None:
    sources = (each.read_text() for each in (ROOT / "kbroker").rglob("*.py"))
    assert any(f"from {UNDOCUMENTED[name]} import" in text for text in sources)
    lines = [each for each in SPARK.read_text().splitlines() if not each.startswith("#")]
    found = [each for each in [*requirements(), *map(Requirement, lines)] if each.name == name]
    assert len(found) > 1
    for each in found:
        assert version(name) in each.specifier
        assert not {"0.99", "1.0"} & {*each.specifier.filter(["0.99", "1.0"])}, str(each)


@pytest.mark.parametrize("server", ["hypercorn"])
def test_extras_with_http_server_bound_h2(server: str) -> None:
    """Hypercorn itself accepts any version of h2."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for name, extra in extras.items():
        names = {Requirement(each).name for each in extra}
        assert server not in names or "h2" in names, name
