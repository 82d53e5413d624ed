"""The verbs of the kit without async: each is the async one, with its signature and its docstring."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable, Iterator
from typing import assert_type

import pytest

from kbroker.client.groups import Group
from kbroker.client.topics import Partition
from kbroker.testing import ExternalKafka, KafkaRecord, LocalBroker, RunningBroker, Snapshot
from kbroker.testing.kit import Kit
from kbroker.testing.node_verbs import NodeVerbs, NodeView
from kbroker.testing.orders import Orders
from kbroker.testing.outside import OutsideKit
from kbroker.testing.verbs import StateVerbs

ONLY_ASYNC = {
    *("begin", "create_anew", "delete_created", "ends", "partitions", "wait_for_expected"),
    *("wait_until", "why", "did", "steadily"),
}
"""What the handles do with a kit, and tests do not."""
OF_ITS_OWN = {"fence_producer"}
"""Verbs that are written down once more, because a crash that the test asked for is no error."""


def verbs(*owners: type) -> dict[str, Callable[..., object]]:
    found: dict[str, Callable[..., object]] = {
        name: method
        for owner in owners
        for name, method in vars(owner).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in ONLY_ASYNC
    }
    assert len(found) > 10
    return found


@pytest.mark.parametrize("name", sorted(verbs(Kit, StateVerbs, NodeVerbs)))
def test_blocking_verb_has_signature_and_docstring_of_async_verb(name: str) -> None:
    verb = verbs(Kit, StateVerbs, NodeVerbs)[name]
    method = getattr(LocalBroker, name)
    assert inspect.signature(method) == inspect.signature(verb)
    assert not inspect.iscoroutinefunction(method)
    if name not in OF_ITS_OWN:
        assert method.__doc__ == verb.__doc__ is not None
        shown = pydoc.plain(pydoc.render_doc(method))
        assert f"{name}(self" in shown
        assert str(inspect.getdoc(verb)).splitlines()[0] in shown


def test_cluster_that_runs_elsewhere_has_the_verbs_of_its_kit() -> None:
    for name, verb in verbs(Kit).items():
        expected = inspect.signature(verb).parameters
        for owner in (ExternalKafka, OutsideKit):
            assert inspect.signature(getattr(owner, name)).parameters == expected, (owner, name)


@pytest.fixture
def local() -> Iterator[LocalBroker]:
    with LocalBroker() as local:
        yield local


def test_control_port_takes_the_words_of_the_verbs(local: LocalBroker) -> None:
    orders = Orders(local, local._thread, lambda _: {}, closable=False)
    assert orders.carry_out({"do": "create_topic", "name": "t", "partitions": 2})["ok"]
    assert orders.carry_out({"do": "topics"}) == {"ok": True, "topics": {"t": 2}}
    refused = orders.carry_out({"do": "wait_for_lag", "nobody": 1})
    assert refused["error"].startswith("wait_for_lag: ")


def test_types_of_blocking_verbs_are_known(local: LocalBroker) -> None:
    """Also to mypy, which checks this file."""
    assert_type(local.create_topic("t", partitions=1), None)
    assert_type(local.topics(), dict[str, int])
    assert_type(local.produce("t", "a", key="k"), KafkaRecord)
    assert_type(local.wait_for("t", 1, timeout=10), list[KafkaRecord])
    assert_type(local.group("g"), Group | None)
    assert_type(local.committed("g"), dict[Partition, int])
    assert_type(local.nodes(), list[NodeView])
    assert_type(local.snapshot(), Snapshot)
    with pytest.raises(TypeError, match="partition_count"):
        local.create_topic("u", partition_count=1)  # type: ignore[call-arg]


async def test_async_kit_tells_records_of_others(broker: RunningBroker) -> None:
    await broker.produce("orders", "mine")
    await broker.expect_nothing("orders")
    await broker.begin()
    assert broker.known.others(await broker.records("orders")) == []
