"""Compaction of random histories, with kills and power cuts, compared with a dictionary.

After each pass a read_committed consumer finds the latest committed value of every key. When all
transactions have ended and every delete horizon has passed, the log holds these values and nothing
else. `--rounds` sets the number of histories.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from kbroker.protocol.records import (
    BatchHeader,
    Marker,
    Record,
    encode_batch,
    end_transaction_marker,
    read_header,
)
from kbroker.storage.cleaning import first_dirty_offset, plan
from kbroker.storage.compaction import KEY_BYTES, Compaction, _Transactions
from kbroker.storage.crash_files import MODES, CrashFiles, Operation
from kbroker.storage.errors import StorageError
from kbroker.storage.log_config import LogConfig
from kbroker.storage.lookups import aborted_transactions
from kbroker.storage.manager import LogManager

from .compaction_history import Clean, CommittedValues, End, Kill, Put, Roll, Wait, steps
from .helpers import META, NOW, open_log
from .test_compaction import carry_out, put_in_place
from .test_compaction_crashes_of_transactions import committed

DELETE_RETENTION_MS = 1000
CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=200,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=DELETE_RETENTION_MS,
    retention_ms=-1,
)
STEPS = 120
FIRST_PRODUCER_ID = 1000
NO_PRODUCER_ID = -1
# Number of histories within which a planted bug must be detected.
PLANTED_BUG_HISTORIES = 12


class PowerCut(BaseException):
    """A power failure or a kill of the process."""


class Model:
    """One partition on a disk that can lose power, and its expected content.

    `counts` holds the number of operations of each kind.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.files = CrashFiles()
        self.truth = CommittedValues()
        self.now = NOW
        self.counts = Counter[str]()
        self.faults: list[str] = []
        self._open()

    def run(self) -> None:
        """Run a history, then compact until nothing more can be removed."""
        for step in steps(self.random, STEPS):
            self.counts[type(step).__name__] += 1
            match step:
                case Put():
                    self._put(step)
                case End():
                    self._end(step)
                case Roll():
                    self.log.roll()
                case Clean():
                    self._clean(step)
                case Wait():
                    self.now += int(step.share * DELETE_RETENTION_MS)
                case Kill():
                    self._restart()
                    self._check("a kill")
        self._settle()

    def _open(self) -> None:
        self.manager = LogManager(self.files, "data", META)
        self.log = open_log(self.manager, "keyed", CONFIG, now_ms=self.now)
        self.log.advance_high_watermark(self.log.log_end_offset)

    def _restart(self) -> None:
        """Restart after a kill or a power failure, which may also interrupt the recovery."""
        self._crash()
        if self.random.random() < 0.3:
            self._run_with_power_cut(self._open, self.random.randrange(30))
        else:
            self._open()

    def _crash(self) -> None:
        self.counts["crash"] += 1
        if self.random.random() < 0.4:
            self.files = self.files.killed()
        else:
            mode = self.random.choice(MODES)
            self.files = self.files.crashed(mode, self.random.randrange(1 << 30))

    def _run_with_power_cut(self, do: Callable[[], object], operations: int | None) -> None:
        """Run a function, and restart if the power fails before one of its operations."""
        left = operations

        def hook(operation: Operation) -> None:
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    raise PowerCut

        self.files.hook = hook
        try:
            do()
        except PowerCut:
            self.files.hook = None
            self.counts["cut"] += 1
            self._restart()
        self.files.hook = None

    def _append(self, data: bytes) -> int:
        header = read_header(data)
        base = self.log.append(
            memoryview(data), header, leader_epoch=0, now_ms=self.now
        ).base_offset
        self._sync()
        return base

    def _sync(self) -> None:
        end = self.log.sync()
        self.log.synced(end)
        self.log.advance_high_watermark(end)

    def _put(self, step: Put) -> None:
        producer_id = FIRST_PRODUCER_ID + step.producer
        if not step.producer and self.random.random() < 0.5:
            producer_id = NO_PRODUCER_ID
        producer = self.log.producers.get(producer_id)
        sequence = producer.next_sequence if producer else 0
        data = encode_batch(
            [Record(key, value, self.now) for key, value in step.pairs],
            producer_id=producer_id,
            producer_epoch=producer.epoch if producer else 0,
            base_sequence=sequence if producer_id >= 0 else -1,
            transactional=step.producer > 0,
            codec=self.random.choice([0, 0, 0, 2]),
        )
        self.truth.put(step, self._append(data))

    def _end(self, step: End) -> None:
        """Write a marker in the producer's epoch or, for transaction version 2, in the next one."""
        producer_id = FIRST_PRODUCER_ID + step.producer
        producer = self.log.producers.get(producer_id)
        assert producer is not None
        self._append(
            end_transaction_marker(
                Marker(step.commit, 0),
                producer_id=producer_id,
                producer_epoch=producer.epoch + self.random.randrange(2),
                timestamp=self.now,
            )
        )
        self.truth.end(step)

    def _clean(self, step: Clean) -> None:
        self._run_with_power_cut(lambda: self._pass(step.keys), step.cut_after)
        self._check("a pass")

    def _pass(self, keys: int) -> None:
        self._sync()
        self.manager.checkpoint(self.now).run()
        task = plan(self.log, self.now, key_map_bytes=keys * KEY_BYTES, decompressed_max=1 << 20)
        if task is None:
            return
        run = Compaction(self.files, task)
        try:
            carry_out(run)
        except StorageError:  # a batch has more keys than fit into the map
            run.discard()
            self.counts["map too small"] += 1
            return
        self.manager.note_compaction(self.log, task.end_offset)
        if put_in_place(self.files, self.log, task, run.result):
            self.counts["pass"] += 1
            self.counts["records gone"] += run.result.records_read - run.result.records_kept
        self.manager.checkpoint(self.now).run()

    def _settle(self) -> None:
        """Compact until every horizon has passed. Only the latest values may remain."""
        self.log.roll()
        for _ in range(4):
            self._pass(1000)
            self.now += 2 * DELETE_RETENTION_MS
        self._check("the last pass")
        found = [(record.key, record.value) for record in committed(self.log)]
        if sorted(found) != sorted(self.truth.latest().items()):
            self.faults.append(f"{sorted(found)} are left of {self.truth.latest()}")
        if left := aborted_transactions(self.log, 0, self.log.log_end_offset):
            self.counts["aborted left"] += len(left)

    def _check(self, after: str) -> None:
        limit = self.log.last_stable_offset
        found: dict[bytes | None, bytes | None] = {}
        for record in committed(self.log):
            if self.truth.committed.get(record.offset) != record[:2]:
                self.faults.append(f"after {after}: {record} was not committed")
            if record.key in found and record.offset < first_dirty_offset(self.log):
                self.faults.append(f"after {after}: an earlier value than {record} is left")
            found[record.key] = record.value
        values = {key: value for key, value in found.items() if value is not None}
        if values != self.truth.latest(limit):
            self.faults.append(f"after {after}: {values}, not {self.truth.latest(limit)}")


def compare(seed: int, rounds: int) -> tuple[list[str], Counter[str]]:
    """Run this many histories and return the faults and the numbers of operations."""
    faults: list[str] = []
    counts = Counter[str]()
    for number in range(rounds):
        model = Model(seed + number)
        try:
            model.run()
        except Exception as error:  # noqa: BLE001 - a fault of this history, whatever it is
            model.faults.append(repr(error))
        faults += [f"seed {seed + number}: {fault}" for fault in model.faults]
        counts += model.counts
    return faults, counts


@pytest.mark.sized
def test_compaction_keeps_the_latest_committed_value_of_each_key(
    pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = pytestconfig.getoption("--rounds")
    faults, counts = compare(pytestconfig.getoption("--seed"), rounds)
    with capsys.disabled():
        print(f"\nfigures: {rounds} histories, {dict(counts)}, {len(faults)} faults")
    assert not faults, "\n".join(faults[:5])
    assert counts["pass"] > 5 * rounds
    assert counts["cut"] > rounds
    assert counts["records gone"] > 20 * rounds


def _counts_markers_before_the_first_mapped_batch(
    transactions: _Transactions, header: BatchHeader
) -> bool:
    transactions._begin_up_to(header.last_offset)
    if header.is_transactional:
        transactions._seen.add(header.producer_id)
    return header.is_transactional and header.producer_id in transactions._aborting


@pytest.mark.parametrize(
    "defect", [_counts_markers_before_the_first_mapped_batch, lambda self, header: False]
)
def test_model_reports_planted_defect(
    monkeypatch: pytest.MonkeyPatch, defect: Callable[[_Transactions, BatchHeader], bool]
) -> None:
    monkeypatch.setattr(_Transactions, "is_aborted", defect)
    assert any(compare(number * 100, 1)[0] for number in range(PLANTED_BUG_HISTORIES))
