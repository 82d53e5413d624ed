"""Tests of Kafka's tools run without the settings of this machine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(no_settings_of_this_machine: None) -> None:
    """Run every test of this directory without profiles and addresses of this machine."""
