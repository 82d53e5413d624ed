"""Tests of the HTTP addresses of a multi-process server in its supervisor."""

from __future__ import annotations

import os

import pytest

from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import CannotListen
from kbroker.process.shared_http import listen_for_http

from ..ports import free_ports


async def test_each_node_inherits_shared_and_own_sockets() -> None:
    config = BrokerConfig.load(options=["http.port=0", "registry.port=0"])
    http = await listen_for_http(config, (1, 2))
    first, second = http.descriptors_of(1), http.descriptors_of(2)
    assert (first.shared, first.registry) == (second.shared, second.registry)
    assert set(first.own).isdisjoint(second.own)
    copies = first._replace(
        own=[os.dup(each) for each in first.own],
        shared=[os.dup(each) for each in first.shared],
        registry=[os.dup(each) for each in first.registry],
    )
    inherited = copies.sockets()
    assert second.others == {1: Endpoint(*inherited.own[0].getsockname())}
    assert http.http == Endpoint("127.0.0.1", inherited.shared[0].getsockname()[1])
    assert not inherited.chosen.is_set()
    for each in (*inherited.own, *inherited.shared, *inherited.registry):
        each.close()
    http.close()


async def test_server_without_http_has_no_addresses() -> None:
    http = await listen_for_http(BrokerConfig.load(), (1, 2))
    assert http.http is None
    assert http.registry is None
    assert http.descriptors_of(1).all == []
    http.close()


async def test_used_registry_port_is_rejected_and_closes_other_sockets() -> None:
    port = free_ports(1)
    config = BrokerConfig.load(options=[f"http.port={port}", f"registry.port={port}"])
    with pytest.raises(CannotListen, match=f"port {port} .* is in use; .* --registry-port 0"):
        await listen_for_http(config, (1, 2))
    (await listen_for_http(BrokerConfig.load(options=[f"http.port={port}"]), (1,))).close()
