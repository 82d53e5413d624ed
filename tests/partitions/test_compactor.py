"""Compaction in a separate process."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from kbroker.partitions.compaction_process import NICENESS, program
from kbroker.partitions.compactor import KEPT_SECONDS, CompactionFailed, ProcessCompactor
from kbroker.runtime.task_frames import LENGTH
from kbroker.storage.batches import Position
from kbroker.storage.compaction import CompactionTask, Source
from kbroker.storage.segment import SegmentRules

from ..brokers import started
from ..limits import PROCESS_SECONDS
from ..wire import (
    connected,
    create_topic,
)
from .compaction_tasks import COMPACTED, leftovers, update

NICENESS_MAX = 19


def make_task(directory: Path) -> CompactionTask:
    return CompactionTask(
        directory=str(directory),
        sources=(Source(0, 10, Position(1000)),),
        first_dirty_offset=0,
        aborted=(),
        last_entries={},
        now_ms=0,
        delete_retention_ms=0,
        segment_bytes=1000,
        rules=SegmentRules(1000, 1000, True),
        key_map_bytes=1000,
        decompressed_max=1000,
        max_record_bytes=1000,
    )


class TestTheProcess:
    async def test_missing_file_fails_the_run(self, tmp_path: Path) -> None:
        compactor = ProcessCompactor()
        for _ in range(2):
            with pytest.raises(CompactionFailed, match="No such file"):
                await compactor.compact(make_task(tmp_path))
        await compactor.release_if_idle(math.inf)
        assert leftovers(tmp_path) == []

    async def test_killed_process_fails_the_run_and_is_replaced(self, tmp_path: Path) -> None:
        compactor = ProcessCompactor()
        with pytest.raises(CompactionFailed, match="No such file"):
            await compactor.compact(make_task(tmp_path))
        process = compactor._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(CompactionFailed, match="process ended"):
            await compactor.compact(make_task(tmp_path))
        with pytest.raises(CompactionFailed, match="No such file"):
            await compactor.compact(make_task(tmp_path))
        await compactor.release_if_idle(math.inf)

    async def test_cancelled_run_ends_the_process(self, tmp_path: Path) -> None:
        compactor = ProcessCompactor()
        with pytest.raises(CompactionFailed, match="No such file"):
            await compactor.compact(make_task(tmp_path))
        process = compactor._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        with trio.move_on_after(0.1) as scope:
            await compactor.compact(make_task(tmp_path))
        assert scope.cancelled_caught
        assert process.returncode == -signal.SIGKILL

    def test_result_without_receiver_prints_no_traceback(self, tmp_path: Path) -> None:
        """If the broker was killed, the process must not print a traceback to the terminal."""
        task = pickle.dumps(make_task(tmp_path))
        process = subprocess.Popen(
            [sys.executable, "-c", program()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(LENGTH.pack(len(task)) + task)
        _, printed = process.communicate(timeout=PROCESS_SECONDS)
        assert printed == b""
        assert process.returncode == 1

    async def test_process_is_kept_for_the_next_run_and_exits_with_the_broker(
        self, tmp_path: Path
    ) -> None:
        """Frequent runs follow each other, and each process start takes CPU time from clients."""
        async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
            topic = await create_topic(wire, "t", configs=COMPACTED)
            compactor = broker.node.maintenance.cleaner._compactor
            assert isinstance(compactor, ProcessCompactor)
            await update(wire, topic, 0, 60)
            assert await broker.node.maintenance.cleaner.clean_all() > 0
            process = compactor._process
            assert process is not None
            await update(wire, topic, 60, 120)
            assert await broker.node.maintenance.cleaner.clean_all() > 0
            assert compactor._process is process
        assert process.returncode == -signal.SIGKILL

    async def test_process_has_lower_priority_and_ignores_ctrl_c(self, tmp_path: Path) -> None:
        """Linux (sched_autogroup) compares priorities only within a session."""
        compactor = ProcessCompactor()
        with pytest.raises(CompactionFailed, match="No such file"):
            await compactor.compact(make_task(tmp_path))
        assert compactor._process is not None
        pid = compactor._process.pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.nice(0) + NICENESS, NICENESS_MAX)
        assert os.getsid(pid) == os.getsid(0)
        assert os.getpgid(pid) == pid
        await compactor.release_if_idle(math.inf)

    async def test_process_exits_if_the_next_run_is_far_away(self, tmp_path: Path) -> None:
        async with (
            started(tmp_path, log_cleaner_enable=False) as broker,
            connected(broker.endpoint) as wire,
        ):
            topic = await create_topic(wire, "t", configs=COMPACTED)
            await update(wire, topic, 0, 60)
            assert await broker.node.maintenance.cleaner.clean_all() > 0
            compactor = broker.node.maintenance.cleaner._compactor
            assert isinstance(compactor, ProcessCompactor)
            assert compactor._process is None

    async def test_process_exits_after_idle_time(self, tmp_path: Path) -> None:
        compactor = ProcessCompactor()
        with pytest.raises(CompactionFailed, match="No such file"):
            await compactor.compact(make_task(tmp_path))
        await compactor.release_if_idle(KEPT_SECONDS / 2)
        assert compactor._process is not None
        await compactor.release_if_idle(KEPT_SECONDS + 1)
        assert compactor._process is None
