"""The cluster that a command connects to, and errors of the connection."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker, open_broker
from kbroker.cli.profiles import write_profiles
from kbroker.cli.target import ENVIRONMENT, Given, resolve
from kbroker.client.credentials import Credentials
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.connection import Connection
from kbroker.net.server import Listener
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import encode_response
from kbroker.protocol.messages.api_versions import ApiVersionsResponse

from ..brokers import started
from ..commands import Cli, invoke
from ..wire import Topic, batch, connected, produce, until


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_command_reports_closed_port() -> None:
    address = free_address()
    output = invoke("topic", "list", "-b", address, status=1).stderr
    assert f"{address} refuses the connection" in output
    assert "kbroker serve" in output
    assert "--bootstrap" in output


def test_command_reports_port_of_other_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(10)

        def answer() -> None:
            client, _ = server.accept()
            client.recv(1000)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            client.close()

        thread = threading.Thread(target=answer)
        thread.start()
        output = invoke("topic", "list", "-b", f"127.0.0.1:{port}", status=1).stderr
        thread.join()
    assert "not a Kafka broker" in output


def test_command_reports_broker_that_stops_responding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker responds to ApiVersions, and to no other request."""
    monkeypatch.setattr("kbroker.client.connection.ANSWER_SECONDS", 0.2)
    rows = [ApiVersionsResponse.ApiVersion(api_key=key, max_version=12) for key in range(4)]
    hello = encode_response(1, ApiKey.API_VERSIONS, 3, ApiVersionsResponse(api_keys=rows))
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def answer() -> None:
            client, _ = server.accept()
            client.recv(1000)
            client.sendall(b"".join(map(bytes, hello)))  # type: ignore[arg-type]
            kept.append(client)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        output = invoke("topic", "list", "-b", address, status=4).stderr
        thread.join()
        kept[0].close()
    assert "no response to Metadata within 0.2 s" in output


def only_waits_for_records(connection: Connection) -> bool:
    """Return True if the only pending request of the client is a fetch that waits for records."""
    return connection.owes_replies and not connection.is_working


async def test_consume_continues_after_broker_restart(cli: Cli, tmp_path: Path) -> None:
    outputs: list[str] = []
    async with trio.open_nursery() as nursery:
        async with started(tmp_path) as broker:
            address = broker.endpoint
            await cli("topic", "create", "t", "-b", str(address))

            async def consume() -> None:
                read = ("topic", "consume", "t", "-b", str(address), "-n", "1", "-f", "%v")
                outputs.append((await cli(*read)).stdout)

            nursery.start_soon(consume)
            await until(lambda: any(map(only_waits_for_records, broker.server.connections)))
        listener = Listener("PLAINTEXT", *address)
        async with (
            open_broker(BrokerConfig(), data_dir=str(tmp_path), listeners=[listener]),
            connected(address) as wire,
        ):
            await produce(wire, Topic("t"), batch([b"back"]))
            await until(lambda: outputs)
    assert outputs == ["back"]


async def test_command_reports_broker_that_stays_down(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.client.consumer.AWAY_SECONDS", 0.3)
    outputs: list[str] = []
    async with trio.open_nursery() as nursery, started() as broker:
        address = str(broker.endpoint)
        await cli("topic", "create", "t", "-b", address)

        async def consume() -> None:
            outputs.append((await cli("topic", "consume", "t", "-b", address, status=1)).stderr)

        nursery.start_soon(consume)
        await until(lambda: len(broker.server.connections) > 1)
        await trio.sleep(0.2)
    assert "refuses the connection" in outputs[0]


async def test_command_reports_unreachable_advertised_address(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Endpoint("127.0.0.1", int(free_address().split(":")[1]))
    listener = Listener("PLAINTEXT", "127.0.0.1", 0, lost)
    async with open_broker(BrokerConfig(), data_dir=None, listeners=[listener]) as other:
        output = (await cli("topic", "create", "t", "-b", other.bootstrap_servers, status=1)).stderr
    assert f"broker 1 advertises {lost}" in output
    assert "--advertise" in output


async def test_brokers_setting_accepts_name_bootstrap_servers(cli: Cli, broker: Broker) -> None:
    await cli("topic", "list", "-X", f"bootstrap.servers={broker.bootstrap_servers}")


@pytest.mark.parametrize(
    ("name", "known"),
    [("user", "sasl.username"), ("pass", "sasl.password"), ("sasl.mechanisms", "sasl.mechanism")],
)
def test_setting_name_of_other_tool_has_suggestion(name: str, known: str) -> None:
    output = invoke("topic", "list", "-X", f"{name}=secret-word", status=2).stderr
    assert f"unknown setting {name!r}; did you mean {known!r}?" in output
    assert "secret-word" not in output


def test_settings_of_librdkafka_become_jaas_configuration() -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "a.PlainLoginModule required username=old password=old;",
    }
    write_profiles("p", {"p": settings})
    given = Given({"sasl.username": "bob", "sasl.password": 'a "b"'}, None)
    target = resolve(given)
    assert target.security.credentials == Credentials("PLAIN", "bob", 'a "b"')
    assert target.settings["sasl.jaas.config"].endswith('username="bob" password="a \\"b\\"";')
    assert "sasl.password" not in target.settings


def test_foreign_token_callback_class_is_rejected() -> None:
    arguments = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER"]
    arguments.append("sasl.login.callback.handler.class=com.example.Tokens")
    options = [word for each in arguments for word in ("-X", each)]
    output = invoke("topic", "list", *options, status=2).stderr
    assert "com.example.Tokens is not supported; remove the setting" in output


async def test_command_tries_second_bootstrap_address(cli: Cli, broker: Broker) -> None:
    await cli("topic", "list", "-b", f"{free_address()},{broker.bootstrap_servers}")


async def test_option_overrides_environment_and_profile(
    cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = free_address()
    monkeypatch.delenv("KBROKER_BOOTSTRAP")
    await cli("profile", "add", "here", "-X", f"brokers={broker.bootstrap_servers}")
    await cli("topic", "list")
    await cli("profile", "add", "nowhere", "-X", f"brokers={nobody}")
    await cli("profile", "use", "nowhere")
    await cli("topic", "list", status=1)
    await cli("profile", "use", "here")
    await cli("topic", "list")
    monkeypatch.setenv("KBROKER_BOOTSTRAP", nobody)
    await cli("topic", "list", status=1)
    await cli("topic", "list", "--profile", "here")
    await cli("--profile", "here", "topic", "list")
    await cli("health", "--profile", "here")
    await cli("--profile", "here", "topic", "list", "--profile", "nowhere", status=1)
    await cli("topic", "list", "--profile", "here", "-b", nobody, status=1)
    await cli("-X", f"brokers={broker.bootstrap_servers}", "topic", "list")
    await cli("topic", "list", "-X", f"brokers={broker.bootstrap_servers}")
    await cli("topic", "list", "-X", f"brokers={nobody}", "-b", broker.bootstrap_servers)


def test_command_reports_directory_that_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints an error message without a traceback."""
    (tmp_path / "my_jobs").touch()
    monkeypatch.setattr(Path, "exists", lambda _: False)
    monkeypatch.chdir(tmp_path)
    output = invoke("init", "pipeline", "aggregate", "my_jobs", status=1).stderr
    assert "File exists" in output
    assert "Traceback" not in output


def test_usage_error_exits_with_status_2() -> None:
    assert "did you mean 'brokers'?" in invoke("topic", "list", "-X", "broker=h:1", status=2).stderr
    assert "a port from 1 to 65535" in invoke("topic", "list", "-b", "h:", status=2).stderr
    assert "did you mean `kbroker topic`?" in invoke("topics", "list", status=2).stderr
    assert "did you mean `kbroker topic describe`?" in invoke("topic", "descibe", status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (["-b", "kafka:"], "--bootstrap"),
        (["-X", "brokers=kafka:"], "-X"),
        (["--profile", "broken"], "profile 'broken'"),
        ([], ENVIRONMENT),
    ],
)
def test_invalid_address_error_names_its_source(
    arguments: list[str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profiles("", {"broken": {"brokers": "kafka:"}})
    monkeypatch.setenv(ENVIRONMENT, "kafka:")
    output = invoke("topic", "list", *arguments, status=2).stderr
    assert f"Invalid value for {source}: invalid address 'kafka:'" in output


def test_unknown_profile_on_command_line_exits_with_status_2() -> None:
    write_profiles("", {"prod": {}})
    output = invoke("topic", "list", "--profile", "prd", status=2).stderr
    assert "unknown profile 'prd'; did you mean 'prod'?" in output
