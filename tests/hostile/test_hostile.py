"""A short run of all attacks against a broker started by the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from .own import attack_own_broker, problems

pytestmark = pytest.mark.long

SECONDS = 0.15


async def test_polite_client_is_served_during_attacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print()
        run = await attack_own_broker(str(tmp_path), SECONDS, SECONDS)
    for each in run.phases:
        assert each.rounds or "nothing" in each.name, f"{each.name} completed no round"
    found = problems(run, waits=False)
    assert not found, "\n".join(found)
