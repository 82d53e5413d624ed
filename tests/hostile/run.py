"""A run of all attacks, one by one and concurrently, and the polite client's response times."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any, TypeAlias

import trio

from ..processors import cpu_ticks, stolen_share
from ..wire import ConnectionClosed
from .attacks import (
    ATTACKS,
    ATTACKS_ON_PRODUCE,
    ATTACKS_ON_STORED_BATCHES,
    ATTACKS_ON_TLS,
    Attack,
    BrokerMisbehaved,
    Target,
    prepare,
    web_pages,
)
from .schemas import ATTACKS_ON_REGISTRY

# Maximum wait of the polite client on an idle machine.
WAIT_SECONDS_MAX = 0.25
# On a busy machine: maximum wait as a multiple of the wait without attacks.
BASELINES = 4
# Maximum seconds of one round of an attack.
ROUND_SECONDS_MAX = 120.0
# Maximum share of CPU time that the host may steal in a phase whose waits count.
STOLEN_MAX = 0.02
RSS_SECONDS = 0.02
ALL_AT_ONCE = "all at once"

Command: TypeAlias = Sequence[str]
Ask: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]


@dataclass
class Phase:
    """The measurements of some seconds of one or more attacks.

    Attributes:
        rounds: Completed rounds.
        closed: Rounds that the broker ended by closing the connection.
        violations: Wrong responses of the broker.
        polite: Report of the polite client.
        loop: Report of the broker's event loop.
        first_rss_bytes: Resident memory of the broker at the start.
        rss_bytes: Maximum resident memory of the broker.
        stolen: Share of CPU time that the host stole.
    """

    name: str
    rounds: int = 0
    closed: int = 0
    violations: set[str] = field(default_factory=set)
    polite: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)
    first_rss_bytes: int = 0
    rss_bytes: int = 0
    stolen: float = 0.0

    @property
    def wait_seconds(self) -> float:
        """Return the longest wait of the polite client."""
        return max(self.polite["worst"].values(), default=0.0)

    def __str__(self) -> str:
        worst = ", ".join(f"{k} {v * 1000:.0f}" for k, v in self.polite["worst"].items())
        text = (
            f"{self.name:<32}{self.rounds:6} rounds, {self.closed:4} closed; waits in ms: {worst}"
        )
        if self.loop:
            text += (
                f"; loop {self.loop['pass'] * 1000:.0f} ms, step {self.loop['step'] * 1000:.0f} ms"
            )
            text += f" ({self.loop['task'].rpartition('.')[2]})"
        if self.rss_bytes:
            text += f"; {self.rss_bytes >> 20} MiB"
        if self.stolen > STOLEN_MAX:
            text += f"; {self.stolen:.0%} of CPU time was stolen"
        for each in (*sorted(self.violations), *self.polite["failures"]):
            text += f"\n    {each}"
        return text


@asynccontextmanager
async def json_child(command: Command) -> AsyncIterator[tuple[trio.Process, Ask, Ask]]:
    """Run a child process that prints a line of JSON for each byte of its input.

    Yields the process, a function that reads the next line, and a function that requests a line.
    """
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, command, stdin=PIPE, stdout=PIPE)
        child: trio.Process = await nursery.start(start)
        assert child.stdin is not None
        stdin = child.stdin
        lines = _Lines(child)

        async def ask() -> dict[str, Any]:
            await stdin.send_all(b"?")
            return await lines.next()

        try:
            yield child, lines.next, ask
        finally:
            with trio.CancelScope(shield=True):
                await stdin.aclose()


class _Lines:
    def __init__(self, child: trio.Process) -> None:
        self._child = child
        self._data = b""

    async def next(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        while b"\n" not in self._data:
            more = await self._child.stdout.receive_some(65536)
            if not more:
                raise EOFError(f"{self._child} ended")
            self._data += more
        line, _, self._data = self._data.partition(b"\n")
        values: dict[str, Any] = json.loads(line)
        return values


class Run:
    """A run of attacks on one broker.

    Args:
        target: The broker.
        pid: Process of the broker, to measure its memory.
        loop: Requests a report of the broker's event loop.
        tries: Maximum attempts per phase, until the host steals little CPU time.
    """

    def __init__(
        self, target: Target, *, pid: int | None = None, loop: Ask | None = None, tries: int = 1
    ) -> None:
        self._target = target
        self._pid = pid
        self._loop = loop
        self._tries = tries
        self.phases: list[Phase] = []

    async def attack(self, seconds: float, only: Collection[str] = ()) -> None:
        """Run nothing, each attack by itself, and all attacks at once.

        Args:
            seconds: Duration of each attack.
            only: Names of the attacks to run; empty for all.

        Raises:
            ValueError: An attack of `only` does not exist.
        """
        await prepare(self._target)
        attacks = self._attacks(only)
        addresses = [self._target.bootstrap]
        if self._target.registry is not None:
            addresses.append(self._target.registry)
        names = (f"{host}:{port}" for host, port in addresses)
        command = (sys.executable, "-m", "tests.hostile.polite", *names)
        async with json_child(command) as (_, _, ask):
            await ask()
            await self._run_phase("nothing", {}, 2 * seconds, ask)
            for attack, count in attacks.items():
                await self._run_phase(attack.__name__, {attack: count}, seconds, ask)
            await self._run_phase(ALL_AT_ONCE, dict.fromkeys(attacks, 1), 3 * seconds, ask)
            await self._run_phase("nothing more", {}, seconds, ask)

    def _attacks(self, only: Collection[str]) -> dict[Attack, int]:
        """Return the attacks for the endpoints of the target, with their number of clients."""
        attacks = dict(ATTACKS)
        if self._target.control is not None:
            attacks[web_pages] = 1
        if self._target.secured is not None:
            attacks |= ATTACKS_ON_TLS
        if self._target.http is not None:
            attacks |= ATTACKS_ON_STORED_BATCHES
        attacks |= ATTACKS_ON_PRODUCE
        if self._target.registry is not None:
            attacks |= ATTACKS_ON_REGISTRY
        names = {each.__name__ for each in attacks}
        if unknown := set(only) - names:
            raise ValueError(f"no such attack: {sorted(unknown)} (valid: {sorted(names)})")
        return {each: count for each, count in attacks.items() if not only or each.__name__ in only}

    async def _run_phase(
        self, name: str, attacks: dict[Attack, int], seconds: float, polite: Ask
    ) -> None:
        """Run a phase, and keep the attempt during which the host stole the least CPU time."""
        done: list[Phase] = []
        while len(done) < self._tries and all(each.stolen > STOLEN_MAX for each in done):
            done.append(await self._try(name, attacks, seconds, polite))
            print(done[-1], flush=True)
        self.phases.append(min(done, key=lambda each: each.stolen))

    async def _try(
        self, name: str, attacks: dict[Attack, int], seconds: float, polite: Ask
    ) -> Phase:
        phase = Phase(name)
        before = cpu_ticks()
        if self._pid is not None:
            phase.first_rss_bytes = rss_of(self._pid)
        if self._loop is not None:
            await self._loop()
        with trio.move_on_after(ROUND_SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_memory, phase)
                for attack, count in attacks.items():
                    for _ in range(count):
                        nursery.start_soon(self._repeat, attack, phase)
                await trio.sleep(seconds)
                while attacks and not phase.rounds:  # noqa: ASYNC110  # a busy machine takes longer
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
        phase.polite = await polite()
        if self._loop is not None:
            phase.loop = await self._loop()
        phase.stolen = stolen_share(before)
        return phase

    async def _repeat(self, attack: Attack, phase: Phase) -> None:
        while True:
            try:
                await attack(self._target)
            except* (ConnectionClosed, OSError, trio.BrokenResourceError):
                phase.closed += 1
            except* BrokerMisbehaved as group:
                phase.violations.update(map(str, group.exceptions))
            phase.rounds += 1
            await trio.lowlevel.checkpoint()

    async def _watch_memory(self, phase: Phase) -> None:
        while True:
            if self._pid is not None:
                phase.rss_bytes = max(phase.rss_bytes, rss_of(self._pid))
            await trio.sleep(RSS_SECONDS)

    def figures(self) -> str:
        """Return the worst results of all phases in one line."""
        worst = max(self.phases, key=lambda each: each.wait_seconds)
        text = (
            f"{sum(each.polite['requests'] for each in self.phases):,} polite requests during "
            f"{sum(each.rounds for each in self.phases):,} rounds of attacks, longest wait "
            f"{worst.wait_seconds * 1000:.0f} ms ({worst.name}), "
            f"{self.phases[0].wait_seconds * 1000:.0f} ms without attacks"
        )
        if self._loop is not None:
            longest = {
                name: max(each.loop[name] for each in self.phases) for name in ("pass", "step")
            }
            text += (
                f"; CPU time of the event loop: longest iteration {longest['pass'] * 1000:.0f} ms, "
                f"longest step {longest['step'] * 1000:.0f} ms"
            )
        if self._pid is not None:
            most = max(each.rss_bytes for each in self.phases)
            text += f"; memory {self.phases[0].rss_bytes >> 20} to {most >> 20} MiB"
        return text

    def wait_seconds_max(self) -> float:
        """Return the maximum wait of the polite client on this machine."""
        return max(WAIT_SECONDS_MAX, BASELINES * self.phases[0].wait_seconds)

    def problems(self, *, waits: bool = True) -> list[str]:
        """Return the violated bounds.

        Args:
            waits: Whether to check the waits of the polite client, which other work on the machine
                prolongs.
        """
        found = []
        for each in self.phases:
            if waits and each.wait_seconds > self.wait_seconds_max():
                found.append(f"{each.name}: the polite client waited {each.wait_seconds:.3f} s")
            found += [
                f"{each.name}: {text}" for text in (*each.polite["failures"], *each.violations)
            ]
            if not each.polite["requests"]:
                found.append(f"{each.name}: no request of the polite client was served")
        return found


def rss_of(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
