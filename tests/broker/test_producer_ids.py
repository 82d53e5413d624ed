"""Producer ids: who gets one, also while the metadata cannot be written."""

from __future__ import annotations

import pytest

from kbroker.cluster.store import OutcomeUnknown
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import InitProducerIdRequest

from ..brokers import Start
from ..wire import connected


async def test_a_store_that_does_not_answer_is_said_to_the_client(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_answer(count: int) -> range:
        raise OutcomeUnknown("the metadata store did not answer in time")

    request = InitProducerIdRequest()
    async with start() as broker, connected(broker.endpoint) as wire:
        with monkeypatch.context() as patch:
            patch.setattr(broker.node.cluster, "allocate_producer_ids", no_answer)
            answer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, request)
            assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert answer.producer_id == -1
        assert (await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, request)).producer_id >= 0
        assert broker.node.troubles.unhandled_errors == 0


@pytest.mark.parametrize("version", range(3, 6))
async def test_a_producer_is_named_by_id_and_epoch_or_not_at_all(
    start: Start, version: int
) -> None:
    """As Kafka, also where there is no transactional id to go on with (KIP-360)."""
    async with start() as broker, connected(broker.endpoint) as wire:
        for producer_id, epoch in ((-1, 0), (7, -1), (0, -1), (-1, 7), (-7, -1)):
            request = InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
            answer = await wire.ask(ApiKey.INIT_PRODUCER_ID, version, request)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        for producer_id, epoch in ((-1, -1), (7, 0), (0, 7), (-7, -7)):
            request = InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
            answer = await wire.ask(ApiKey.INIT_PRODUCER_ID, version, request)
            assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0)
            assert answer.producer_id >= 0
