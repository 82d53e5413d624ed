"""Attacks in turn and at once, and what the polite client saw of them."""

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

from ..processors import processors, stolen_part
from ..wire import ConnectionClosed
from .attacks import (
    ATTACKS,
    ATTACKS_ON_PRODUCE,
    ATTACKS_ON_STORED_BATCHES,
    ATTACKS_ON_TLS,
    Attack,
    Spoilt,
    Target,
    prepare,
    web_pages,
)
from .schemas import ATTACKS_ON_REGISTRY

WAIT_SECONDS_MAX = 0.25
"""The longest that the polite client may wait on a machine that has time for it."""
BASELINES = 4
"""On one that has not: so many times as long as it waits there without attacks."""
ROUND_SECONDS_MAX = 120.0
"""How long one round of an attack may take."""
STOLEN_MAX = 0.02
"""The part of the processors that a host may give to others while the waits of a phase count."""
RSS_SECONDS = 0.02
ALL_AT_ONCE = "all at once"

Command: TypeAlias = Sequence[str]
Ask: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]


@dataclass
class Phase:
    """Some seconds of some attacks."""

    name: str
    rounds: int = 0
    """How many of an attack were carried through."""
    closed: int = 0
    """How many of them the broker ended."""
    spoilt: set[str] = field(default_factory=set)
    polite: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)
    """What the broker says of its event loop."""
    first_rss_bytes: int = 0
    """The memory of its process when the phase began."""
    rss_bytes: int = 0
    """The most memory that its process took."""
    stolen: float = 0.0
    """The part of the processors that the host gave to others."""

    @property
    def wait_seconds(self) -> float:
        """The longest wait of the polite client."""
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
            text += f"; {self.stolen:.0%} of the processors went elsewhere"
        for each in (*sorted(self.spoilt), *self.polite["failures"]):
            text += f"\n    {each}"
        return text


@asynccontextmanager
async def told_by(command: Command) -> AsyncIterator[tuple[trio.Process, Ask, Ask]]:
    """A child that prints a line of JSON for each byte that it is sent.

    Yields it, what reads the next line, and what asks for one. The child ends with the block.
    """
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, command, stdin=PIPE, stdout=PIPE)
        child: trio.Process = await nursery.start(start)
        assert child.stdin is not None
        orders = child.stdin
        lines = _Lines(child)

        async def ask() -> dict[str, Any]:
            await orders.send_all(b"?")
            return await lines.next()

        try:
            yield child, lines.next, ask
        finally:
            with trio.CancelScope(shield=True):
                await orders.aclose()


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
    """Attacks on one broker.

    Parameters: `pid` is the broker's process, whose memory is looked at; `loop` asks the broker about
    its event loop; a phase is done up to `tries` times, until the machine was ours meanwhile.
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
            seconds: How long each attack goes on.
            only: Names of the attacks to run; empty for all.

        Raises:
            ValueError: An attack of `only` does not exist.
        """
        await prepare(self._target)
        attacks = self._attacks(only)
        addresses = [self._target.bootstrap]
        if self._target.registry is not None:
            addresses.append(self._target.registry)
        there = (f"{host}:{port}" for host, port in addresses)
        command = (sys.executable, "-m", "tests.hostile.polite", *there)
        async with told_by(command) as (_, _, ask):
            await ask()
            await self._phase("nothing", {}, 2 * seconds, ask)
            for attack, count in attacks.items():
                await self._phase(attack.__name__, {attack: count}, seconds, ask)
            await self._phase(ALL_AT_ONCE, dict.fromkeys(attacks, 1), 3 * seconds, ask)
            await self._phase("nothing more", {}, seconds, ask)

    def _attacks(self, only: Collection[str]) -> dict[Attack, int]:
        """Return the attacks that the target has a listener for, and how often each runs at once."""
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

    async def _phase(
        self, name: str, attacks: dict[Attack, int], seconds: float, polite: Ask
    ) -> None:
        """Go through a phase; of several tries the one counts that was disturbed least."""
        done: list[Phase] = []
        while len(done) < self._tries and all(each.stolen > STOLEN_MAX for each in done):
            done.append(await self._try(name, attacks, seconds, polite))
            print(done[-1], flush=True)
        self.phases.append(min(done, key=lambda each: each.stolen))

    async def _try(
        self, name: str, attacks: dict[Attack, int], seconds: float, polite: Ask
    ) -> Phase:
        phase = Phase(name)
        before = processors()
        if self._pid is not None:
            phase.first_rss_bytes = rss_of(self._pid)
        if self._loop is not None:
            await self._loop()
        with trio.move_on_after(ROUND_SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_memory, phase)
                for attack, count in attacks.items():
                    for _ in range(count):
                        nursery.start_soon(self._keep_on, attack, phase)
                await trio.sleep(seconds)
                while attacks and not phase.rounds:  # noqa: ASYNC110  # a busy machine takes longer
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
        phase.polite = await polite()
        if self._loop is not None:
            phase.loop = await self._loop()
        phase.stolen = stolen_part(before)
        return phase

    async def _keep_on(self, attack: Attack, phase: Phase) -> None:
        while True:
            try:
                await attack(self._target)
            except* (ConnectionClosed, OSError, trio.BrokenResourceError):
                phase.closed += 1
            except* Spoilt as group:
                phase.spoilt.update(map(str, group.exceptions))
            phase.rounds += 1
            await trio.lowlevel.checkpoint()

    async def _watch_memory(self, phase: Phase) -> None:
        while True:
            if self._pid is not None:
                phase.rss_bytes = max(phase.rss_bytes, rss_of(self._pid))
            await trio.sleep(RSS_SECONDS)

    def figures(self) -> str:
        """The worst of all phases, in one line."""
        worst = max(self.phases, key=lambda each: each.wait_seconds)
        text = (
            f"{sum(each.polite['requests'] for each in self.phases):,} polite requests beside "
            f"{sum(each.rounds for each in self.phases):,} rounds of attacks, longest wait "
            f"{worst.wait_seconds * 1000:.0f} ms ({worst.name}), "
            f"{self.phases[0].wait_seconds * 1000:.0f} ms without attacks"
        )
        if self._loop is not None:
            longest = {
                what: max(each.loop[what] for each in self.phases) for what in ("pass", "step")
            }
            text += (
                f"; event loop, of a processor: longest pass {longest['pass'] * 1000:.0f} ms, "
                f"longest step {longest['step'] * 1000:.0f} ms"
            )
        if self._pid is not None:
            most = max(each.rss_bytes for each in self.phases)
            text += f"; memory {self.phases[0].rss_bytes >> 20} to {most >> 20} MiB"
        return text

    def wait_seconds_max(self) -> float:
        """What the polite client may wait here and now."""
        return max(WAIT_SECONDS_MAX, BASELINES * self.phases[0].wait_seconds)

    def wrongs(self, *, waits: bool = True) -> list[str]:
        """What a broker does not do that is to be relied on.

        Parameters: `waits` says whether the polite client's waits count, which other work on the
        machine makes longer.
        """
        found = []
        for each in self.phases:
            if waits and each.wait_seconds > self.wait_seconds_max():
                found.append(f"{each.name}: a wait of {each.wait_seconds:.3f} s")
            found += [f"{each.name}: {text}" for text in (*each.polite["failures"], *each.spoilt)]
            if not each.polite["requests"]:
                found.append(f"{each.name}: the polite client was not served at all")
        return found


def rss_of(pid: int) -> int:
    """The memory that a process has now, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
