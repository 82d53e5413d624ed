"""Feature levels of a cluster, and updates of them."""

from __future__ import annotations

import pytest

from kbroker.broker import Broker
from kbroker.cluster.features import SUPPORTED, check_update
from kbroker.protocol.errors import KafkaError


def test_update_type_must_match_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.cluster.features.SUPPORTED", {"f": range(1, 4)})
    check_update({"f": 2}, {}, "f", 3, 1)
    check_update({"f": 2}, {}, "f", 1, 2)
    for level, kind in ((1, 1), (3, 2), (3, 3)):
        with pytest.raises(KafkaError):
            check_update({"f": 2}, {}, "f", level, kind)


async def test_finalized_levels_are_stored(broker: Broker) -> None:
    cluster = broker.node.cluster
    assert cluster.features == {name: levels[-1] for name, levels in SUPPORTED.items()}
    before = cluster.features_revision
    levels = {"metadata.version": 30, "other": 2}
    assert await cluster.finalize_features(levels, revision=before, cause="test")
    assert cluster.features == {"metadata.version": 30, "other": 2}
    assert not await cluster.finalize_features(levels, revision=before, cause="test")


async def test_level_unsupported_by_a_node_is_rejected() -> None:
    """Nodes that are down or do not know the feature also prevent the update."""
    nodes = {1: {"f": [1, 3]}, 2: {"f": [1, 2]}, 3: {"f": [1, 3]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kbroker.cluster.features.SUPPORTED", {"f": range(4)})
        check_update({"f": 1}, nodes, "f", 2, 1)
        with pytest.raises(KafkaError, match=r"node 2 does not support level 3 \(valid: 1 to 2\)"):
            check_update({"f": 1}, nodes, "f", 3, 1)
        with pytest.raises(KafkaError, match=r"node 1 does not support level 0 \(valid: 1 to 3\)"):
            check_update({"f": 1}, nodes, "f", 0, 2)
        with pytest.raises(KafkaError, match=r"node 4 does not support level 3 \(valid: 0 to 0\)"):
            check_update({"f": 1}, {4: {}}, "f", 3, 1)
