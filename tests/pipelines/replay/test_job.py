"""Saved progress of a replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.producer import Producer
from kbroker.pipelines.replay import target
from kbroker.pipelines.replay.job import WritingReplay
from kbroker.pipelines.replay.journal import Journal
from kbroker.pipelines.replay.pace import Rate
from kbroker.pipelines.replay.partitioners import kept
from kbroker.pipelines.replay.replay import Replay, ResumeState, Shift
from kbroker.pipelines.replay.target import Writer

from .given import ListSource, ListTarget, records


async def test_progress_is_not_saved_while_target_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A run that is killed while it skips written records must not have moved the positions."""
    monkeypatch.setattr(target, "SAVE_SECONDS", 0)
    path = tmp_path / "progress"
    producer = Producer(ClusterClient([], "x", direct=False))
    journal = Journal({}, {}, 7, 0, {"0": 4}, {"0": 4})
    saved: list[Any] = []

    def written() -> None:
        writing.save_if_due()
        saved.append(json.loads(path.read_text())["positions"] if path.exists() else None)

    source = ListSource(records(*range(6)))
    already_written = ResumeState({}, {0: 4})
    replay = Replay(
        source,
        ListTarget().write,
        kept(1),
        Rate(1),
        Shift(0),
        begun=already_written,
        written=written,
    )
    writing = WritingReplay(source, replay, journal, Writer(producer, "t", journal, path), 4)
    writing.save()
    await replay.run()
    assert next(each for each in saved if each is not None) == {"0": 4}
    assert saved.count(None) >= 3
    writing.save(finished=True)
    assert json.loads(path.read_text())["positions"] == {"0": 6}
