"""Saved progress of a replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.offset_spec import END, START
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics, wait_until_ready
from kbroker.pipelines.replay import merging, target
from kbroker.pipelines.replay import replay as replay_module
from kbroker.pipelines.replay.job import ReplayRequest, ReplaySetup, WritingReplay, prepare
from kbroker.pipelines.replay.journal import Journal, ends_of, load
from kbroker.pipelines.replay.pace import Rate, Unpaced
from kbroker.pipelines.replay.partitioners import kept
from kbroker.pipelines.replay.replay import Replay, ResumeState, Shift
from kbroker.pipelines.replay.target import Target, Writer
from kbroker.pipelines.replay.values import unchanged
from kbroker.protocol.records import NO_TIMESTAMP

from ...brokers import started
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


class Killed(Exception):
    pass


@pytest.mark.parametrize("kills", [1, 2])
async def test_kill_after_shift_is_found_does_not_duplicate_records(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shift is found after the first records, which have no timestamp, are written."""
    monkeypatch.setattr(replay_module, "RECORDS_MAX", 2)
    monkeypatch.setattr(merging, "CHUNK_RECORDS", 2)
    path = tmp_path / "progress"
    source = ListSource(records(*[NO_TIMESTAMP] * 4, 1_000, 2_000))
    save = Writer.save_shift

    def save_shift(writer: Writer, ms: int) -> None:
        save(writer, ms)
        raise Killed

    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await create_topics(cluster, [NewTopic("t", 1, 1)])
        await wait_until_ready(cluster, {"t": 1})
        for run in range(kills + 1):
            request = ReplayRequest("t", START, END, Unpaced(), shift_ms=None, progress=path)
            journal = load(path, {})
            if journal is not None and run < kills:
                journal.shift_ms = None  # this run was killed before the shift was saved
            setup = ReplaySetup(source, Target("t", None, 1), unchanged, True, journal)
            monkeypatch.setattr(Writer, "save_shift", save_shift if run < kills else save)
            writing = await prepare(request, setup, cluster, lambda: None)
            if run < kills:
                with pytest.raises(Killed):
                    await writing.replay.run()
            else:
                await writing.replay.run()
        ends = await ends_of(cluster, "t", 1)
    assert ends == {"0": 6}
