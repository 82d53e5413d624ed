"""A broker of our own for the attacks, with small settings, and what it must keep to under them."""

from __future__ import annotations

import json
import sys

from .attacks import FRAME_BYTES, Target
from .run import Run, told_by

SETTINGS = {
    "queued.max.request.bytes": str(64 << 20),
    "socket.request.max.bytes": str(2 * FRAME_BYTES),
    "first.request.timeout.ms": "10000",
}
PASS_SECONDS_MAX = 0.25
"""Of a processor: how long the broker's loop may be busy before it looks who has come."""
MEMORY_BYTES_MAX = 400 << 20
"""Above what it begins with: the large requests, and what each connection may hold."""


async def attack_own_broker(
    data_dir: str, seconds: float, hold_seconds: float, *, tries: int = 1
) -> Run:
    """Do everything to a broker in a process of its own that keeps its data in `data_dir`.

    Parameters: each attack goes on for `seconds`, and keeps what it holds for `hold_seconds`; see
    `Run` for `tries`.
    """
    command = (sys.executable, "-m", "tests.hostile.server", data_dir, json.dumps(SETTINGS))
    async with told_by(command) as (server, first, ask):
        port = (await first())["port"]
        target = Target(("127.0.0.1", port), hold_seconds)
        run = Run(target, pid=server.pid, loop=ask, tries=tries)
        await run.attack(seconds)
    return run


def wrongs(run: Run, *, waits: bool = True) -> list[str]:
    """What our broker does not do that is to be relied on; see `Run.wrongs`."""
    found = run.wrongs(waits=waits)
    for each in run.phases:
        if each.loop["pass"] > PASS_SECONDS_MAX:
            found.append(f"{each.name}: the loop was busy for {each.loop['pass']:.3f} s")
        if each.rss_bytes > run.phases[0].rss_bytes + MEMORY_BYTES_MAX:
            found.append(f"{each.name}: {each.rss_bytes >> 20} MiB")
    return found
