"""Everything that a client can do to hold up others, against a broker of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .attacks import FRAME_BYTES, Target
from .run import Run, told_by

SECONDS = 1
REQUEST_BYTES = 64 << 20
SETTINGS = {
    "queued.max.request.bytes": str(REQUEST_BYTES),
    "socket.request.max.bytes": str(2 * FRAME_BYTES),
    "first.request.timeout.ms": "10000",
}
PASS_SECONDS_MAX = 0.25
"""Of a processor: how long the broker's loop may be busy before it looks who has come."""
MEMORY_BYTES_MAX = 400 << 20
"""Above what it begins with: the large requests, and what each connection may hold."""


async def test_nobody_holds_up_a_polite_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (sys.executable, "-m", "tests.hostile.server", str(tmp_path), json.dumps(SETTINGS))
    with capsys.disabled():
        print()
        async with told_by(command) as (server, first, ask):
            port = (await first())["port"]
            run = Run(Target(("127.0.0.1", port)), pid=server.pid, loop=ask)
            await run.attack(SECONDS)
    idle = run.phases[0]
    wrongs = run.wrongs(waits=False)
    for each in run.phases:
        if each.loop["pass"] > PASS_SECONDS_MAX:
            wrongs.append(f"{each.name}: the loop was busy for {each.loop['pass']:.3f} s")
        if each.rss_bytes > idle.rss_bytes + MEMORY_BYTES_MAX:
            wrongs.append(f"{each.name}: {each.rss_bytes >> 20} MiB")
        assert each.rounds or "nothing" in each.name, f"{each.name} did nothing"
    assert not wrongs, "\n".join(wrongs)
