"""What tests of TLS and logins begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from .certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Somebody who issues certificates, into the folder of the test."""
    return Authority(tmp_path)
