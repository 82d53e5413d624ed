"""A history is a seeded list of steps. If responses differ, fewer steps are tried for the report.

Each step has a seed of its own, so it makes the same choices if other steps are left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .pair import Differs, Pair

# How long to look for a shorter history with a difference.
SHORTEN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: Name of the method of the area.
        seed: Seed of its random choices.
    """

    name: str
    seed: int


class Area:
    """Kinds of steps, and the state of the history that they need.

    Args:
        pair: Both brokers.
        prefix: Prefix of the names of topics and groups, different in each run.
        rng: Source of the choices before the first step.

    Attributes:
        weights: How often each step occurs, by the name of its method.
        lost_by_kafka: Steps whose effect Apache Kafka may lose if it is killed. Histories with
            restarts do not contain them.
    """

    weights: ClassVar[Mapping[str, int]] = {}
    lost_by_kafka: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, pair: Pair, prefix: str, rng: random.Random) -> None:
        self.pair = pair
        self.prefix = prefix
        self.rng = rng
        self.begin()

    def begin(self) -> None:
        """Create what the steps need."""
        raise NotImplementedError

    def end(self) -> None:
        """Compare the final state."""

    def restart(self) -> None:
        """Kill and start both brokers."""
        self.pair.restart()

    def perform(self, step: Step) -> None:
        self.rng = random.Random(step.seed)
        getattr(self, step.name)()

    def chance(self, of_one: float) -> bool:
        return self.rng.random() < of_one


@dataclass(slots=True)
class Run:
    """One execution of a list of steps.

    Attributes:
        done: Number of steps before the difference, or of all steps.
        difference: The first difference, if any.
    """

    done: int = 0
    difference: Differs | None = None


class Histories:
    """Runs histories of one area, and counts the differences.

    Args:
        area: The area.
        pair: Both brokers.
        restarts: Chance of a restart per step.
    """

    def __init__(self, area: type[Area], pair: Pair, restarts: float = 0.0) -> None:
        self.area = area
        self.pair = pair
        self.restarts = restarts
        self._runs = 0

    def steps(self, seed: int, count: int) -> list[Step]:
        """Return the steps of a history."""
        rng = random.Random(seed)
        left_out = self.area.lost_by_kafka if self.restarts else frozenset()
        names = [name for name in self.area.weights if name not in left_out]
        weights = [self.area.weights[name] for name in names]
        steps = [Step(rng.choices(names, weights)[0], rng.getrandbits(48)) for _ in range(count)]
        return [
            Step("restart", 0) if random.Random(step.seed).random() < self.restarts else step
            for step in steps
        ]

    def check(self, seed: int, count: int) -> str | None:
        """Run a history, and return the report of the first difference, or None."""
        steps = self.steps(seed, count)
        run = self._run(seed, steps)
        if run.difference is None:
            return None
        steps, difference = self._shortened(seed, steps[: run.done + 1], run.difference)
        names = ", ".join(step.name for step in steps)
        return f"seed {seed}, {len(steps)} steps ({names}):\n{difference}"

    def _run(self, seed: int, steps: Sequence[Step]) -> Run:
        self._runs += 1
        self.pair.begin()
        run = Run()
        prefix = f"{self.area.__name__.lower()}-{seed}-{self._runs}-{time.time_ns() % 10**6}"
        try:
            area = self.area(self.pair, prefix, random.Random(seed))
            for step in steps:
                area.perform(step)
                run.done += 1
            area.end()
        except Differs as difference:
            run.difference = difference
        return run

    def _shortened(
        self, seed: int, steps: list[Step], difference: Differs
    ) -> tuple[list[Step], Differs]:
        """Leave out parts of the steps as long as there is a difference."""
        deadline = time.monotonic() + SHORTEN_SECONDS
        size = len(steps) // 2
        while size:
            start = 0
            while start < len(steps) and time.monotonic() < deadline:
                fewer = steps[:start] + steps[start + size :]
                run = self._run(seed, fewer)
                if run.difference is None:
                    start += size
                else:
                    steps, difference = fewer[: run.done + 1], run.difference
            size //= 2
        return steps, difference
