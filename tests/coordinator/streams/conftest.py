"""Fixtures of streams groups."""

from __future__ import annotations

import pytest

from ..harness import Harness
from .groups import QUICK


@pytest.fixture
def h() -> Harness:
    """Return a coordinator that assigns tasks without delay."""
    return Harness(streams=QUICK)
