"""Detection of libraries that replace threads and sockets of the process.

This module imports only the standard library, because the import of trio fails under eventlet.
"""

from __future__ import annotations

import sys


def patching_library() -> str | None:
    """Return the name of the library that replaced the threads or sockets of this process, or None."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, ("thread", "socket", "select"))):
        return "gevent"
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and any(
        map(eventlet.is_monkey_patched, ("thread", "socket", "select"))
    ):
        return "eventlet"
    return None


def check_threads() -> None:
    """Check that a broker can run in a thread of this process.

    Raises:
        RuntimeError: gevent or eventlet has replaced the threads or sockets that a broker needs.
    """
    library = patching_library()
    if library is not None:
        raise RuntimeError(
            f"{library} has replaced the threads and sockets of this process, and a broker in it "
            "needs the real ones; run the broker in a process of its own: "
            "`kbroker run -- COMMAND` starts one and sets KAFKA_BOOTSTRAP_SERVERS"
        )
