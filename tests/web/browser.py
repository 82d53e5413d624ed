"""A browser for tests: Debian's Chromium with playwright, which is an optional dependency."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a headless browser."""
    path = shutil.which("chromium")
    assert path, "Chromium is missing: apt-get install chromium (Debian; as root) installs it"
    with (
        sync_playwright() as tool,
        tool.chromium.launch(executable_path=path, args=["--no-sandbox"]) as found,
    ):
        yield found
