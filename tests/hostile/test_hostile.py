"""A small dose of everything that a client can do to hold up others, against a broker of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from .own import attack_own_broker, wrongs

pytestmark = pytest.mark.long

SECONDS = 0.15


async def test_nobody_holds_up_a_polite_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print()
        run = await attack_own_broker(str(tmp_path), SECONDS, SECONDS)
    for each in run.phases:
        assert each.rounds or "nothing" in each.name, f"{each.name} did nothing"
    found = wrongs(run, waits=False)
    assert not found, "\n".join(found)
