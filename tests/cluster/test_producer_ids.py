"""Allocation of producer IDs, including store failures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.cluster.store import OutcomeUnknown, StoreProblem
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.storage.errors import WriteRefusedError
from kbroker.storage.naming import PRODUCER_IDS

from ..brokers import Start, started
from ..wire import connected


async def test_unreachable_store_returns_retriable_error(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_without_response(count: int) -> range:
        raise OutcomeUnknown("the metadata store did not answer in time")

    request = InitProducerIdRequest()
    async with start() as broker, connected(broker.endpoint) as wire:
        with monkeypatch.context() as patch:
            patch.setattr(broker.node.cluster, "allocate_producer_ids", fail_without_response)
            response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, request)
            assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert response.producer_id == -1
        assert (await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, request)).producer_id >= 0
        assert broker.node.context.error_log.unhandled_errors == 0


@pytest.mark.parametrize("problem", [None, StoreProblem("etcd is at its quota", "raise the quota")])
async def test_warning_names_cause_and_action_once_while_no_ids_can_be_reserved(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    problem: StoreProblem | None,
) -> None:
    async def fail_without_response(count: int) -> range:
        raise OutcomeUnknown("the metadata store did not answer in time")

    async with start() as broker, connected(broker.endpoint) as wire:
        cluster = broker.node.cluster
        monkeypatch.setattr(cluster, "allocate_producer_ids", fail_without_response)
        monkeypatch.setattr(type(cluster), "store_problem", problem)
        for transactional_id in (None, None, "t"):
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=1000
            )
            if transactional_id is not None:
                await wire.ask(
                    ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="t", key_type=1)
                )
            response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, request)
            assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    (warning,) = [each for each in caplog.records if "producers wait" in each.message]
    assert warning.levelname == "WARNING"
    if problem is None:
        assert "did not answer in time; run `kbroker cluster health`" in warning.message
    else:
        assert "etcd is at its quota; raise the quota" in warning.message


@pytest.mark.parametrize("version", range(3, 6))
async def test_producer_id_without_epoch_is_rejected(start: Start, version: int) -> None:
    """The rule holds even without a transactional ID, as in Kafka (KIP-360)."""
    async with start() as broker, connected(broker.endpoint) as wire:
        for producer_id, epoch in ((-1, 0), (7, -1), (0, -1), (-1, 7), (-7, -1)):
            request = InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
            response = await wire.ask(ApiKey.INIT_PRODUCER_ID, version, request)
            assert response.error_code == ErrorCode.INVALID_REQUEST
            assert (response.producer_id, response.producer_epoch) == (-1, -1)
        for producer_id, epoch in ((-1, -1), (7, 0), (0, 7), (-7, -7)):
            request = InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
            response = await wire.ask(ApiKey.INIT_PRODUCER_ID, version, request)
            assert (response.error_code, response.producer_epoch) == (ErrorCode.NONE, 0)
            assert response.producer_id >= 0


async def request_producer_id(broker: Broker) -> int:
    async with connected(broker.endpoint) as wire:
        response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, InitProducerIdRequest())
    assert response.error_code == ErrorCode.NONE
    found: int = response.producer_id
    return found


async def test_ids_are_not_issued_again_after_older_journal_was_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tmp_path / "cluster.journal"
    issued: list[int] = []
    async with started(tmp_path):
        pass
    oldest = journal.read_bytes()
    for run in range(4):
        async with started(tmp_path) as broker:
            issued += [await request_producer_id(broker), await request_producer_id(broker)]
        if run % 2:
            journal.write_bytes(oldest)
            (tmp_path / "cluster.journal.clean").unlink()
    assert len({*issued}) == len(issued) == 8
    assert "metadata is older than the log directories" in caplog.text


async def test_ids_are_not_issued_again_if_another_directory_knows_them(tmp_path: Path) -> None:
    first, second, copy = (tmp_path / name for name in ("first", "second", "copy"))
    async with started([first, second]):
        pass
    shutil.copytree(first, copy)
    async with started([first, second]) as broker:
        before = await request_producer_id(broker)
    shutil.rmtree(first)
    copy.rename(first)
    async with started([first, second]) as broker:
        assert await request_producer_id(broker) > before


async def test_damaged_checkpoint_is_named_and_ids_are_issued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as broker:
        before = await request_producer_id(broker)
    (tmp_path / PRODUCER_IDS).write_bytes(b"0\n1\n__producer_ids 0 1x\n")
    async with started(tmp_path) as broker:
        assert await request_producer_id(broker) > before
    assert f"{PRODUCER_IDS} is damaged" in caplog.text


async def test_producer_ids_are_issued_on_full_disk(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_write(end: int) -> None:
        raise WriteRefusedError("no space left")

    async with start() as broker:
        logs = broker.node.partitions.logs
        monkeypatch.setattr(logs, "store_reserved_producer_ids_end", refuse_write)
        assert await request_producer_id(broker) >= 0
    assert "cannot store the end of the reserved producer ids: no space left" in caplog.text
