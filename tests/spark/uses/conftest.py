"""Import path of the examples, which normally run from their own directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"


@pytest.fixture(scope="package", autouse=True)
def _examples_can_be_imported() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))
