"""Sizes for people."""

from __future__ import annotations

import pytest

from kbroker.text.sizes import human_size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_250_000_000, "1.2 GB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (2**64 - 1, "18.4 EB"),
    ],
)
def test_human_size_has_one_decimal_and_unit(size: int | None, text: str) -> None:
    assert human_size(size) == text
