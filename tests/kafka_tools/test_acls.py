"""kafka-acls: confirmation of removals."""

from __future__ import annotations

import pytest

from kbroker.broker import open_broker
from kbroker.config import BrokerConfig
from kbroker.config.broker_table import STANDARD_AUTHORIZER

from ..brokers import LOOPBACK
from ..commands import Cli


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 1), ("", 1)])
async def test_kafka_acls_remove_asks_for_confirmation(cli: Cli, answer: str, left: int) -> None:
    access = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    async with open_broker(
        BrokerConfig.load(options=access), data_dir=None, listeners=[LOOPBACK]
    ) as broker:
        acls = ("compat", "kafka-acls", "--bootstrap-server", broker.bootstrap_servers)
        await cli(
            *acls, "--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", "t"
        )
        output = await cli(*acls, "--remove", "--topic", "t", stdin=answer)
        assert output.stdout == (
            "Are you sure you want to delete all ACLs for resource filter "
            "`ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)`? (y/n)\n"
        )
        listed = await cli(*acls, "--list", "--topic", "t")
        assert listed.stdout.count("principal=User:a") == left
