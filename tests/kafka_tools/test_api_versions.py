"""kafka-broker-api-versions: the versions that the tool knows."""

from __future__ import annotations

from kbroker.kafka_tools.api_versions import NEWEST
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey


def test_the_tool_knows_the_newest_version_of_every_api() -> None:
    declared = {int(key): messages.request_class(key).VERSIONS[-1] for key in ApiKey}
    assert declared == NEWEST
