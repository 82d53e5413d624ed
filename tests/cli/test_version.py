"""`kbroker version`: versions of kbroker, of Python and of a cluster."""

from __future__ import annotations

import json
import platform

from kbroker import __version__
from kbroker.broker import Broker
from kbroker.testing.releases import RELEASES

from ..commands import Cli, invoke


def test_version_shows_python_and_extras() -> None:
    output = invoke("version").stdout
    assert output.startswith(f"kbroker  {__version__}")
    assert f"Python   {platform.python_version()}" in output
    value = json.loads(invoke("version", "-o", "json").stdout)
    assert value["version"] == __version__
    assert {"console", "spark"} <= {*value["extras"], *value["missing_extras"]}
    assert not {*value["extras"]} & {*value["missing_extras"]}
    assert "brokers" not in value


async def test_version_of_cluster_names_newest_kafka_release(cli: Cli, broker: Broker) -> None:
    value = json.loads((await cli("version", "--cluster", "-o", "json")).stdout)
    (row,) = value["brokers"]
    assert row["address"] == broker.bootstrap_servers
    assert row["api_versions"] == RELEASES[-1]
    assert row["features"]["metadata.version"] > 20
    assert f"  {RELEASES[-1]}  " in (await cli("version", "--cluster")).stdout
