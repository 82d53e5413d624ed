"""Options of the tests that draw at random; environment variables stand for them in a soak run."""

from __future__ import annotations

import os
import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kbroker")
    group.addoption(
        "--frames",
        type=int,
        default=int(os.environ.get("KBROKER_FUZZ_FRAMES", "20000")),
        help="How many mutated frames tests/fuzz sends (KBROKER_FUZZ_FRAMES).",
    )
    group.addoption(
        "--rounds",
        type=int,
        default=int(os.environ.get("KBROKER_KILL_ROUNDS", "10")),
        help="How often tests/kill kills a broker (KBROKER_KILL_ROUNDS).",
    )
    group.addoption(
        "--seed",
        type=int,
        default=int(os.environ.get("KBROKER_SEED") or random.SystemRandom().randrange(10**9)),
        help="Seed of tests/fuzz and tests/kill, to repeat a run (KBROKER_SEED).",
    )
