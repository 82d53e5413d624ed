"""A broker of our own for the attacks, with small settings, and what it must keep to under them."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path

import trustme

from .attacks import FRAME_BYTES, Target
from .run import ALL_AT_ONCE, Run, told_by

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
    "max.connections.per.ip": "10000",
    "queued.max.request.bytes": str(64 << 20),
    "socket.request.max.bytes": str(2 * FRAME_BYTES),
    "connection.setup.timeout.ms": "10000",
    "log.cleaner.backoff.ms": "200",
    "http.port": "0",
    "registry.port": "0",
}
PASS_SECONDS_MAX = 0.25
"""Of a processor: how long the broker's loop may be busy before it looks who has come."""
MEMORY_BYTES_MAX = 150 << 20
"""Maximum growth of the resident memory during one attack."""
ALL_MEMORY_BYTES_MAX = 400 << 20
"""Maximum growth during all attacks, whose connections together may hold more."""


async def attack_own_broker(
    data_dir: str,
    seconds: float,
    hold_seconds: float,
    *,
    tries: int = 1,
    only: Collection[str] = (),
) -> Run:
    """Do everything to a broker in a process of its own that keeps its data below `data_dir`.

    Parameters: each attack goes on for `seconds`, and keeps what it holds for `hold_seconds`; see
    `Run` for `tries`.
    """
    own = Path(data_dir, "server.pem")
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(own)
    settings = json.dumps({**SETTINGS, "ssl.keystore.location": str(own)})
    command = (sys.executable, "-m", "tests.hostile.server", f"{data_dir}/data", settings)
    async with told_by(command) as (server, first, ask):
        told = await first()
        bootstrap, secured, http = (("127.0.0.1", port) for port in told["ports"])
        registry = "127.0.0.1", told["registry"]
        target = Target(bootstrap, hold_seconds, secured=secured, registry=registry, http=http)
        run = Run(target, pid=server.pid, loop=ask, tries=tries)
        await run.attack(seconds, only)
    return run


def wrongs(run: Run, *, waits: bool = True) -> list[str]:
    """What our broker does not do that is to be relied on; see `Run.wrongs`."""
    found = run.wrongs(waits=waits)
    for each in run.phases:
        if each.loop["pass"] > PASS_SECONDS_MAX:
            found.append(f"{each.name}: the loop was busy for {each.loop['pass']:.3f} s")
        growth = each.rss_bytes - each.first_rss_bytes
        if each.name != ALL_AT_ONCE and growth > MEMORY_BYTES_MAX:
            found.append(f"{each.name}: memory grew by {growth >> 20} MiB")
        if each.rss_bytes > run.phases[0].rss_bytes + ALL_MEMORY_BYTES_MAX:
            found.append(f"{each.name}: {each.rss_bytes >> 20} MiB")
    return found
