"""The polite client: it sends one request at a time and measures the longest wait by request type.

It runs in its own process, so it waits only for the broker. For each byte of its input it prints a
line of JSON about the time since the previous line. It exits at the end of the input.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kbroker.protocol.messages.metadata import MetadataRequest

from ..blocking import BlockingWire
from ..wire import Topic, batch, produce_request, request

TOPIC = "polite"
PAUSE_SECONDS = 0.002
# A batch that is decompressed off the event loop.
COMPRESSED = batch([random.Random(index).randbytes(1000) for index in range(40)], codec=Codec.GZIP)


class PoliteClient:
    """A connection to the broker, one to a schema registry if given, and the measured waits."""

    def __init__(self, address: tuple[str, int], registry: tuple[str, int] | None = None) -> None:
        self._address = address
        self._registry = None if registry is None else HTTPConnection(*registry, timeout=60)
        self.requests = 0
        self.failures: list[str] = []
        self.worst: dict[str, float] = {}
        self._connect()
        self._use_registry()

    def _connect(self) -> None:
        self._ask = BlockingWire(*self._address, "polite").ask
        row = MetadataRequest.Topic(name=TOPIC)
        self._ask(ApiKey.METADATA, 9, MetadataRequest(topics=[row], allow_auto_topic_creation=True))
        self._ask(
            ApiKey.FIND_COORDINATOR,
            4,
            request(ApiKey.FIND_COORDINATOR, coordinator_keys=["polite"]),
        )
        self._join()

    def _join(self) -> None:
        protocol = JoinGroupRequest.Protocol(name="range", metadata=b"")
        joined = self._ask(
            ApiKey.JOIN_GROUP,
            1,
            JoinGroupRequest(
                group_id="polite",
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[protocol],
            ),
        )
        self._member = {
            "group_id": "polite",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
        }
        self._ask(ApiKey.SYNC_GROUP, 1, SyncGroupRequest(**self._member))

    def send_all_types(self) -> None:
        """Send each type of request once. After a failure, record it and reconnect."""
        kinds = (
            (ApiKey.PRODUCE, 9, produce_request(Topic(TOPIC), batch())),
            (ApiKey.PRODUCE, 9, produce_request(Topic(TOPIC), COMPRESSED)),
            (ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequest.Topic(name=TOPIC)])),
            (ApiKey.HEARTBEAT, 1, HeartbeatRequest(**self._member)),
        )
        try:
            for key, version, message in kinds:
                began = time.perf_counter()
                response = self._ask(key, version, message)
                self._note(key, time.perf_counter() - began, _error_in(key, response))
        except OSError as error:
            self.failures.append(str(error))
            self._connect()
        began = time.perf_counter()
        if self._use_registry():
            took = time.perf_counter() - began
            self.worst["SchemaRegistry"] = max(self.worst.get("SchemaRegistry", 0.0), took)

    def _use_registry(self) -> bool:
        """Register a schema and read it. Returns False without a registry."""
        if self._registry is None:
            return False
        body = json.dumps({"schema": '{"type": "fixed", "name": "Polite", "size": 8}'})
        requests = ("POST", "/subjects/polite/versions", body), ("GET", "/schemas/ids/1", None)
        for method, path, data in requests:
            try:
                self._registry.request(method, path, data)
                response = self._registry.getresponse()
                response.read()
            except (OSError, HTTPException) as error:
                self.failures.append(f"registry: {error!r}")
                self._registry.close()
                return True
            if response.status != HTTPStatus.OK:
                self.failures.append(f"registry: {method} {path}: {response.status}")
        return True

    def _note(self, key: ApiKey, seconds: float, error: int) -> None:
        self.requests += 1
        self.worst[key.api_name] = max(self.worst.get(key.api_name, 0.0), seconds)
        if error:
            self.failures.append(f"{key.api_name}: error {error}")

    def report(self) -> dict[str, Any]:
        """Return the measurements since the last report."""
        seen = {"requests": self.requests, "worst": self.worst, "failures": self.failures[:20]}
        self.requests, self.worst, self.failures = 0, {}, []
        return seen


def _error_in(key: ApiKey, response: Any) -> int:
    if key == ApiKey.PRODUCE:
        return int(response.responses[0].partition_responses[0].error_code)
    return int(response.topics[0].error_code if key == ApiKey.METADATA else response.error_code)


def main() -> None:
    addresses = (each.rsplit(":", 1) for each in sys.argv[1:])
    client = PoliteClient(*((host, int(port)) for host, port in addresses))
    while True:
        client.send_all_types()
        if select.select([0], [], [], PAUSE_SECONDS)[0]:
            if not os.read(0, 1):
                return
            print(json.dumps(client.report()), flush=True)


if __name__ == "__main__":
    main()
