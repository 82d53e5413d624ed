"""Tests of closing several resources concurrently."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from kbroker.runtime.closing import close_concurrently

pytestmark = pytest.mark.trio


async def fail(message: str) -> None:
    await trio.lowlevel.checkpoint()
    raise OSError(message)


@pytest.mark.parametrize("failures", [1, 2])
async def test_failed_close_does_not_cancel_others(failures: int) -> None:
    closed = []

    async def close() -> None:
        await trio.sleep(0.01)
        closed.append(True)

    closers = [partial(fail, str(number)) for number in range(failures)]
    with pytest.raises((OSError, ExceptionGroup)) as raised:
        await close_concurrently([*closers, close, close])
    assert closed == [True, True]
    error = raised.value
    errors = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    assert sorted(map(str, errors)) == [str(number) for number in range(failures)]
