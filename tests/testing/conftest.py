"""kafka-python leaves sockets behind when a connection breaks while it connects."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _sockets_of_the_client_are_collected() -> Iterator[None]:
    """Here, and not in a test of something else that happens to run later."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
