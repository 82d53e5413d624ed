"""Opens a session once, to download the connector's jars before the tests run."""

from __future__ import annotations

import sys
from pathlib import Path

from session import open_session

if __name__ == "__main__":
    open_session(Path(sys.argv[1])).stop()
