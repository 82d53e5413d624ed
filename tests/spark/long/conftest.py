"""The soak test runs only on request: ``--long-records`` or `make soak PART=pipelines`."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.getoption("--long-records") else True
