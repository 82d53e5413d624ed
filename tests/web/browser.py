"""A browser for tests: Debian's Chromium, and playwright, which not every installation has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    path = shutil.which("chromium")
    assert path, "Chromium is missing: apt-get install chromium (Debian; as root) brings it"
    with (
        sync_playwright() as tool,
        tool.chromium.launch(executable_path=path, args=["--no-sandbox"]) as found,
    ):
        yield found
