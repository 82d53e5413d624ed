"""A pytest plug-in: with CI=true, a test that is skipped without a listed reason fails the run.

`tests/run_parts.py` loads it in every part. tests/skips.txt lists `node id: reason`, one a line.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LISTED = Path(__file__).with_name("skips.txt")


class SkipKeeper:
    """Counter of skipped tests, listed and unlisted."""

    def __init__(self, listed: set[str]) -> None:
        self._listed = listed
        self.skipped: list[str] = []

    @property
    def unlisted(self) -> list[str]:
        return [name for name in self.skipped if name not in self._listed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and os.environ.get("CI") == "true":
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"skipped: {len(self.skipped)}")
        for name in self.unlisted:
            terminalreporter.write_line(f"skipped and not listed in tests/skips.txt: {name}")


def read_listed(text: str) -> set[str]:
    """Return the node IDs in the list; lines without a reason do not count."""
    rows = (line.partition(": ") for line in text.splitlines() if not line.startswith("#"))
    return {name for name, _, reason in rows if reason.strip()}


def pytest_configure(config: pytest.Config) -> None:
    """Enable the rule; pytest runs inside the project's tests start without it."""
    for name in ("PYTEST_PLUGINS", "PYTEST_ADDOPTS"):
        os.environ.pop(name, None)
    config.pluginmanager.register(SkipKeeper(read_listed(LISTED.read_text())))
