"""Checks of software bills of materials: `release.sbom`. `make wheels` writes a real one."""

from __future__ import annotations

import pytest
from packaging.version import Version

from release.sbom import Component, Sbom, find_problems

VERSION = Version("1.2.3")


@pytest.fixture
def sbom() -> Sbom:
    """Return a complete SBOM of kbroker with one dependency."""
    return {
        "components": [
            {"name": "kbroker", "version": "1.2.3", "purl": "pkg:pypi/kbroker@1.2.3"},
            {"name": "trio", "version": "0.35", "purl": "pkg:pypi/trio@0.35"},
        ],
        "dependencies": [
            {"ref": "kbroker==1.2.3", "dependsOn": ["trio==0.35"]},
            {"ref": "trio==0.35"},
        ],
    }


def test_complete_sbom_has_no_problems(sbom: Sbom) -> None:
    assert find_problems(sbom, VERSION) == []


def test_sbom_of_another_version_is_reported(sbom: Sbom) -> None:
    assert find_problems(sbom, Version("1.2.4")) == ["kbroker 1.2.4 is not listed"]


def test_missing_dependency_is_reported(sbom: Sbom) -> None:
    del sbom["dependencies"][1]
    assert find_problems(sbom, VERSION) == [
        "component 'trio==0.35' is required by 'kbroker==1.2.3' and is not listed"
    ]


@pytest.mark.parametrize(
    "component",
    [{"name": "h2", "version": "4.3"}, {"name": "h2", "purl": "pkg:pypi/h2"}],
    ids=["no package URL", "no version"],
)
def test_component_without_version_or_package_url_is_reported(
    sbom: Sbom, component: Component
) -> None:
    sbom["components"].append(component)
    assert find_problems(sbom, VERSION) == ["component 'h2' has no version or no package URL"]
