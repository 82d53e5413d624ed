"""Tests of the clients that wait for a refresh of the token keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from kbroker.node.token_keys import REFRESH_SECONDS_MIN, WOKEN_AT_ONCE, TokenKeys
from kbroker.runtime.threads import run_in_thread
from kbroker.security.tokens import Tokens

from ..security.issuers import key_for, key_set
from ..security.test_tokens import MODULE, lookup, settings_for

Result = TypeVar("Result")


class Resumed(trio.abc.Instrument):
    """The number of clients that continued, and the most of them in one event-loop iteration."""

    def __init__(self) -> None:
        self.total = self.most = 0
        self._before = 0

    async def wait(self, keys: TokenKeys) -> None:
        await keys.look_up()
        self.total += 1

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, self.total - self._before)
        self._before = self.total


async def test_clients_with_unknown_key_continue_a_few_at_a_time(tmp_path: Path) -> None:
    path, count = tmp_path / "keys.json", 20 * WOKEN_AT_ONCE
    path.write_bytes(key_set(key_for("ES256")))
    keys = TokenKeys(Tokens(lookup(settings_for(path)), MODULE), "SASL_SSL")
    resumed = Resumed()
    trio.lowlevel.add_instrument(resumed)
    with trio.fail_after(10):
        async with trio.open_nursery() as clients:
            for _ in range(count):
                clients.start_soon(resumed.wait, keys)
            await trio.testing.wait_all_tasks_blocked()
            assert resumed.total == 0
            async with trio.open_nursery() as refreshing:
                refreshing.start_soon(keys.run, run_in_thread)
                while resumed.total < count:  # noqa: ASYNC110  # there is no event for it
                    await trio.sleep(0.01)
                refreshing.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(resumed)
    assert resumed.most <= WOKEN_AT_ONCE


@pytest.mark.parametrize("is_refreshing", [True, False])
async def test_clients_do_not_wait_for_replaced_keys(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, *, is_refreshing: bool
) -> None:
    """New settings cancel the refresh, in the middle of one or between two."""
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(key_for("ES256")))
    keys = TokenKeys(Tokens(lookup(settings_for(path)), MODULE), "SASL_SSL")

    async def in_thread(work: Callable[[], Result]) -> Result:
        await trio.sleep(math.inf if is_refreshing else 0)
        return work()

    async with trio.open_nursery() as clients:
        async with trio.open_nursery() as refreshing:
            refreshing.start_soon(keys.run, in_thread)
            if not is_refreshing:
                await trio.sleep(REFRESH_SECONDS_MIN / 2)
            for _ in range(2 * WOKEN_AT_ONCE):
                clients.start_soon(keys.look_up)
            await trio.sleep(REFRESH_SECONDS_MIN / 4)
            refreshing.cancel_scope.cancel()
        began = trio.current_time()
    await keys.look_up()
    assert trio.current_time() == began
