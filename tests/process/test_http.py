"""Tests of the HTTP services of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from kbroker.broker.local_node import LocalNode
from kbroker.process.http import HttpServices

pytestmark = pytest.mark.trio


class FakeService:
    """A service whose close takes some time, or fails."""

    def __init__(self, *, fails: bool) -> None:
        self.is_closed = False
        self._fails = fails

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._fails:
            raise OSError("cannot close")
        await trio.sleep(0.01)
        self.is_closed = True


@pytest.mark.parametrize("failing", range(3))
async def test_service_that_fails_to_close_does_not_keep_others_open(failing: int) -> None:
    fakes: list[Any] = [FakeService(fails=number == failing) for number in range(3)]
    with pytest.raises(OSError, match="cannot close"):
        await HttpServices(*fakes).close()
    assert [each.is_closed for each in fakes] == [number != failing for number in range(3)]
