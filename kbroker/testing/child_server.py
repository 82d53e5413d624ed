"""`kbroker serve` as a child process that stops together with this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

# Maximum seconds that a server may take to stop.
STOP_SECONDS = 30


def start_server(options: Sequence[str]) -> tuple[subprocess.Popen[str], str]:
    """Start a server on a free port, and wait until it is ready.

    Args:
        options: Command-line options of `kbroker serve`.

    Returns:
        The process, and the bootstrap address HOST:PORT of the server.

    Raises:
        RuntimeError: The server did not start.
    """
    serve = ["serve", "--port", "0", "--json", "--exit-with-parent", *options]
    command = [sys.executable, "-m", "kbroker", *serve]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                return process, event["bootstrap_servers"]
    except BaseException:  # for example Ctrl+C, or the timeout of a test
        stop_server(process)
        raise
    stop_server(process)
    raise RuntimeError(
        f"the server did not start; run `kbroker serve {' '.join(options)}` to see the error"
    )


def stop_server(process: subprocess.Popen[str]) -> None:
    """Stop a server; kill it if it does not stop within `STOP_SECONDS`."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
