"""`kbroker health`: exit status 0 or 1, also for ports of other servers."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from click.testing import CliRunner

from kbroker.cli import main
from kbroker.cli.health import health
from kbroker.client.round_trip import CHECK_SECONDS, check_round_trip

from ..limits import PROCESS_SECONDS

HEALTH = [sys.executable, "-m", "kbroker", "health"]


@contextmanager
def server_with(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Open a port of a server that is not a broker; `answer` gets each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                answer(client)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def run_health(address: str, *flags: str) -> tuple[int, str, float]:
    """Return exit status, output, and the duration in seconds."""
    began_at = time.perf_counter()
    done = CliRunner().invoke(health, ["--bootstrap", address, *flags])
    return done.exit_code, done.output, time.perf_counter() - began_at


def test_health_of_closed_port_exits_with_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    status, output, _ = run_health(address)
    assert status == 1
    assert address in output
    assert "kbroker serve" in output


@pytest.mark.parametrize(
    "response",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x02ab", b"\x7f\xff\xff\xff", b"\x00"],
    ids=repr,
)
def test_health_of_other_server_exits_with_status_1(response: bytes) -> None:
    def send(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(response)
        client.close()

    with server_with(send) as address:
        status, output, _ = run_health(address)
    assert status == 1
    assert "does not respond" in output


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "it closes the connection without a response (if it speaks TLS, set"),
        (b"\x15\x03\x03\x00\x02\x02\x16", "it sends a TLS alert instead of a response; set"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "it sends a TLS alert instead of a response; set"),
    ],
)
def test_commands_name_tls_if_server_probably_expects_it(response: bytes, reason: str) -> None:
    def send(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(response)
        client.close()

    with server_with(send) as address:
        status, output, _ = run_health(address)
        listed = CliRunner().invoke(main, ["topic", "list", "-b", address])
    assert (status, listed.exit_code) == (1, 1)
    assert f"{address} does not respond: {reason} security.protocol=SSL" in output
    assert f"{address} {reason.removeprefix('it ')} security.protocol=SSL" in listed.output
    for text in (output, listed.output):
        assert "docs/how-to/tls.md" in text
        assert "kbroker serve" not in text


def test_health_over_tls_of_plaintext_port_names_tls_settings() -> None:
    with server_with(socket.socket.close) as address:
        status, output, _ = run_health(address, "-X", "security.protocol=SSL")
    assert status == 1
    assert "TLS handshake with" in output
    assert "docs/how-to/tls.md" in output
    assert "kbroker serve" not in output


def test_health_of_silent_port_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's health check must end before the container runtime's timeout."""
    assert CHECK_SECONDS <= 10
    short = partial(check_round_trip, patience_seconds=0.5)
    monkeypatch.setattr("kbroker.client.check_round_trip", short)
    kept: list[socket.socket] = []
    with server_with(kept.append) as address:
        status, output, seconds = run_health(address)
    for client in kept:
        client.close()
    assert status == 1
    assert "within 0.5 seconds" in output
    assert 0.4 < seconds < 60


def test_health_wait_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    status, _, seconds = run_health(address, "--wait", "700ms")
    assert status == 1
    assert 0.6 < seconds < 60


@pytest.mark.slow
def test_health_wait_succeeds_when_server_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    waiting = subprocess.Popen(
        [*HEALTH, "--bootstrap", f"localhost:{port}", "--wait", "300s"], stdout=subprocess.DEVNULL
    )
    time.sleep(0.5)
    serve = [sys.executable, "-m", "kbroker", "serve", "--memory", "--port", str(port)]
    server_process = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert waiting.wait(PROCESS_SECONDS) == 0
    finally:
        server_process.kill()
        server_process.wait()


@pytest.mark.parametrize("address", ["two hosts", "host:", ":9092", "host:port", "host:99999"])
def test_health_of_invalid_address_exits_with_status_1(address: str) -> None:
    """Containers reserve status 2, so an invalid address exits with 1."""
    status, output, _ = run_health(address)
    assert status == 1
    assert f"invalid address {address!r}" in output
