"""The compaction process after its broker was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ..wire import (
    until,
)


@pytest.mark.slow
async def test_compaction_process_exits_when_its_broker_is_killed(tmp_path: Path) -> None:
    """The process must not run concurrently with a new broker on the same directory."""
    script = (
        "import trio, sys\n"
        "from pathlib import Path\n"
        "from kbroker.partitions.compactor import CompactionFailed, ProcessCompactor\n"
        "from tests.partitions.test_compactor import make_task\n"
        "async def main():\n"
        "    compactor = ProcessCompactor()\n"
        "    try:\n"
        "        await compactor.compact(make_task(Path(sys.argv[1])))\n"
        "    except CompactionFailed:\n"
        "        print(compactor._process.pid, flush=True)\n"
        "    await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    root = str(Path(__file__).parents[2])
    parent = await trio.lowlevel.open_process(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert parent.stdout is not None
    async with parent.stdout:
        pid = int((await parent.stdout.receive_some(100)).split()[0])
        assert is_running(pid)
        parent.kill()
        await parent.wait()
    await until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
