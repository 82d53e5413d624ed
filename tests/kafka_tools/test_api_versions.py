"""kafka-broker-api-versions: the table of newest versions."""

from __future__ import annotations

from kbroker.kafka_tools.api_versions import NEWEST
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey


def test_newest_versions_equal_declared_versions() -> None:
    declared = {int(key): messages.request_class(key).VERSIONS[-1] for key in ApiKey}
    assert declared == NEWEST
