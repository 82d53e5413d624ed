"""Settings of clients for brokers under test. tests/testing/test_broker_security.py tests the settings."""

from __future__ import annotations

import subprocess
import sys


def test_settings_are_available_without_trio() -> None:
    """Tests pass them to clients in environments that have only the client library."""
    code = "import sys; sys.modules['trio'] = None; import kbroker.testing.client_settings"
    subprocess.run([sys.executable, "-c", code], check=True)
