"""Shares of clients in the CPU time of one thread: tables and random histories."""

from __future__ import annotations

import random
from itertools import count

import pytest

from kbroker.runtime.cpu_shares import (
    DEBT_SECONDS_MAX,
    HEAVY_SECONDS,
    SHARE,
    CpuAccount,
    CpuShares,
)

# Maximum CPU seconds of light work.
PIECE_SECONDS = 0.016


@pytest.mark.parametrize(
    ("pieces", "now", "is_heavy"),
    [
        ([], 0.0, False),
        ([(0.0, 0.1)], 0.0, False),
        ([(0.0, 0.11)], 0.0, True),
        ([(0.0, 0.11)], 0.03, False),
        ([(0.0, 3.0)], 5.7, True),
        ([(0.0, 3.0)], 5.9, False),
        ([(0.0, 0.05), (1.0, 0.05), (2.0, 0.05)], 2.0, False),
        ([(0.0, 100.0)], DEBT_SECONDS_MAX - 0.3, True),
        ([(0.0, 100.0)], DEBT_SECONDS_MAX, False),
    ],
)
def test_client_is_heavy_while_its_debt_is_large(
    pieces: list[tuple[float, float]], now: float, *, is_heavy: bool
) -> None:
    shares, client = CpuShares(), CpuAccount("a")
    for at, seconds in pieces:
        shares.charge(client, seconds, at)
    assert shares.is_heavy(client, now) is is_heavy
    assert shares.is_heavy(CpuAccount("a"), now) is is_heavy, "a new connection"
    assert not shares.is_heavy(CpuAccount("b"), now)


def test_other_connections_of_client_keep_their_own_share() -> None:
    shares, polite, greedy = CpuShares(), CpuAccount("a"), CpuAccount("a")
    shares.charge(polite, 0.001, 0.0)
    shares.charge(greedy, 5.0, 0.0)
    assert not shares.is_heavy(polite, 0.0)
    assert shares.sort_key(polite, 0.0) < shares.sort_key(greedy, 0.0)


def test_paid_debts_do_not_change_order() -> None:
    shares, long_ago, new = CpuShares(), CpuAccount("a"), CpuAccount("b")
    shares.charge(long_ago, 1.0, 0.0)
    assert shares.sort_key(long_ago, 5.0) == shares.sort_key(new, 5.0)


@pytest.mark.parametrize("identities", [1, 3])
def test_reconnecting_client_gains_no_light_work(
    identities: int, pytestconfig: pytest.Config
) -> None:
    """In random histories, the light work of each identity stays within its share of the time.

    Each piece runs on a connection of its own and begins with a check, as in `HeavyWork`.
    """
    rng = random.Random(pytestconfig.getoption("--seed"))
    shares, now = CpuShares(), 0.0
    light: dict[int, list[tuple[float, float]]] = {name: [] for name in range(identities)}
    for _ in range(3000):
        now += rng.choice([0.0, 0.0, 0.01, 0.5]) * rng.random()
        name = rng.randrange(identities)
        client = CpuAccount(name)
        seconds = rng.random() * PIECE_SECONDS
        if not shares.is_heavy(client, now):
            light[name].append((now, seconds))
            shares.charge(client, seconds, now)
        elif rng.random() < 0.1:
            shares.charge(client, 10 * seconds, now)
    for pieces in light.values():
        for first in range(0, len(pieces), 50):
            total, began = 0.0, pieces[first][0]
            for at, seconds in pieces[first:]:
                total += seconds
                assert total <= SHARE * (at - began) + HEAVY_SECONDS + PIECE_SECONDS + 1e-6


def test_expired_identities_use_no_memory() -> None:
    shares = CpuShares()
    for number in count():
        shares.charge(CpuAccount(number), 0.001, number / 1000)
        if number == 50_000:
            break
    assert len(shares) <= 10
