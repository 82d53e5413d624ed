"""Tests of `client(...)` of the test kit, whose settings authenticate by certificate or token."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.java import java
from harness.places import ROOT, environment_python
from harness.tools import COMMANDS

from kbroker.testing import BrokerThread, LocalBroker

CLIENT = "kbroker's test kit"
SECONDS = 60
# Broker settings for each type of credentials.
KINDS: dict[str, dict[str, Any]] = {
    "a certificate": {"certificates": ["shop"]},
    "a token": {"tokens": ["shop"]},
    "a token over TLS": {"tokens": ["shop"], "tls": True},
}

# The settings contain objects of the library, so create them in its process.
WITH_AIOKAFKA = """
import asyncio, json, sys
from pathlib import Path
from aiokafka import AIOKafkaProducer
from kbroker.testing.client_settings import ClientSettings, TokenLogin
from kbroker.testing.credentials import Certificate

given = json.loads(sys.stdin.read())
settings = ClientSettings(
    given["bootstrap"],
    given["authority"],
    given["token"] and TokenLogin("shop", lambda: given["token"], Path(given["file"])),
    given["certificate"] and Certificate(*given["certificate"]),
)

async def send():
    async with AIOKafkaProducer(**settings.aiokafka) as producer:
        await producer.send_and_wait("orders", b"by aiokafka")

asyncio.run(send())
"""


@pytest.fixture(params=KINDS)
def broker(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    thread = BrokerThread()
    rights = {"shop": ["WRITE topic orders", "IDEMPOTENT_WRITE cluster"]}
    words = KINDS[request.param]
    with LocalBroker(topics=["orders"], acls=rights, thread=thread, **words) as made:
        yield made
    thread.close()


def values(broker: LocalBroker) -> list[bytes | None]:
    return [record.value for record in broker.records("orders")]


def test_java_client_authenticates_with_kit_settings(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = broker.client("shop").java
    file = tmp_path / "client.properties"
    # Escape line breaks for Java.
    lines = [f"{name}=" + value.replace("\n", "\\n") for name, value in properties.items()]
    file.write_text("\n".join(lines))
    allowed = properties.get("sasl.oauthbearer.token.endpoint.url", "none")
    option = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}"
    monkeypatch.setenv("JDK_JAVA_OPTIONS", option)
    java(
        "kafka-4.4",
        COMMANDS["kafka-console-producer"],
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", "orders"),
        *("--command-config", str(file)),
        stdin="by Java\n",
    )
    assert values(broker) == [b"by Java"]


def test_aiokafka_authenticates_with_kit_settings(broker: LocalBroker) -> None:
    settings = broker.client("shop")
    login, certificate = settings.login, settings.certificate
    given = {
        "bootstrap": settings.bootstrap_servers,
        "authority": settings.authority,
        "token": login and broker.token("shop"),
        "file": "unused",
        "certificate": certificate and [certificate.chain, certificate.key],
    }
    done = subprocess.run(
        [environment_python("aiokafka"), "-c", WITH_AIOKAFKA],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert values(broker) == [b"by aiokafka"]
