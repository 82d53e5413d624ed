"""A broker started for the attacks, with low limits, and the bounds it must keep."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path

import trustme

from .attacks import FRAME_BYTES, Target
from .run import ALL_AT_ONCE, Run, json_child

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
# Maximum CPU seconds of one event-loop iteration.
ITERATION_SECONDS_MAX = 0.25
# Maximum growth of the resident memory in bytes during one attack.
MEMORY_BYTES_MAX = 150 << 20
# Maximum growth in bytes during all attacks at once, whose connections together may hold more.
ALL_MEMORY_BYTES_MAX = 400 << 20


async def attack_own_broker(
    data_dir: str,
    seconds: float,
    hold_seconds: float,
    *,
    tries: int = 1,
    only: Collection[str] = (),
) -> Run:
    """Run all attacks against a broker process that keeps its data below `data_dir`.

    Args:
        data_dir: Directory for data and certificate.
        seconds: Duration of each attack.
        hold_seconds: How long attacks keep connections and memory occupied.
        tries: See `Run`.
        only: Names of the attacks to run; empty for all.
    """
    own = Path(data_dir, "server.pem")
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(own)
    settings = json.dumps({**SETTINGS, "ssl.keystore.location": str(own)})
    command = (sys.executable, "-m", "tests.hostile.server", f"{data_dir}/data", settings)
    async with json_child(command) as (server, first, ask):
        ready = await first()
        bootstrap, secured, http = (("127.0.0.1", port) for port in ready["ports"])
        registry = "127.0.0.1", ready["registry"]
        target = Target(bootstrap, hold_seconds, secured=secured, registry=registry, http=http)
        run = Run(target, pid=server.pid, loop=ask, tries=tries)
        await run.attack(seconds, only)
    return run


def problems(run: Run, *, waits: bool = True) -> list[str]:
    """Return the violated bounds of the started broker; see `Run.problems`."""
    found = run.problems(waits=waits)
    for each in run.phases:
        if each.loop["pass"] > ITERATION_SECONDS_MAX:
            found.append(
                f"{each.name}: an event-loop iteration took {each.loop['pass']:.3f} s of CPU"
            )
        growth = each.rss_bytes - each.first_rss_bytes
        if each.name != ALL_AT_ONCE and growth > MEMORY_BYTES_MAX:
            found.append(f"{each.name}: memory grew by {growth >> 20} MiB")
        if each.rss_bytes > run.phases[0].rss_bytes + ALL_MEMORY_BYTES_MAX:
            found.append(f"{each.name}: memory is {each.rss_bytes >> 20} MiB")
    return found
