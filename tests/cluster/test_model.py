"""Names of topics and identifiers of clusters."""

import pytest

from kbroker.cluster.model import random_cluster_id
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.storage.files import MemFiles

from .clusters import open_cluster


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a.b", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a\0", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("ä", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a\n", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_invalid_topic_name_is_rejected(name: str, code: ErrorCode) -> None:
    cluster = await open_cluster(MemFiles())
    await cluster.create_topic("a.b", [[1]], {}, cause="test")
    with pytest.raises(KafkaError) as raised:
        await cluster.create_topic(name, [[1]], {}, cause="test")
    assert raised.value.code == code


def test_cluster_ids_look_like_kafkas() -> None:
    ids = {random_cluster_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(each) == 22 and not each.startswith("-") for each in ids)
