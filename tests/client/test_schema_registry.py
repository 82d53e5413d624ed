"""Client of a schema registry: redirects and malformed responses."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kbroker.client.schema_registry import RegistryRejection, SchemaError, SchemaRegistry


@contextmanager
def server(status: int, body: bytes, location: str = "") -> Iterator[tuple[str, list[str]]]:
    """Run a server with one response; yield its address, and the credentials that it received."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{running.server_port}", received
        finally:
            running.shutdown()
            thread.join()


def test_password_is_not_sent_to_other_host_of_redirect() -> None:
    with (
        server(200, b"{}") as (other, received),
        server(302, b"", f"http://{other}/subjects") as (address, _),
    ):
        registry = SchemaRegistry(f"http://user:secret@{address}")
        with pytest.raises(SchemaError, match=f"it redirects to http://{other}") as raised:
            registry.ask("subjects")
        assert received == []
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        "http://user:se/cret@host:8081",
        "http://user:12/cret@host:8081",
        "http://user:12?cret@host",
        "http://user:a@b/cret@host",
        "http://user:cret@[::1",
        "http://user:cret@host:port",
        "http://user:cret@",
        "http://user:cret@host:0",
        "user:cret@host:8081",
        "ftp://user:cret@host",
    ],
)
def test_error_of_invalid_address_does_not_contain_password(address: str) -> None:
    with pytest.raises(
        SchemaError, match=r"expected http://HOST:PORT; .* write / as %2F"
    ) as raised:
        SchemaRegistry(address)
    assert "cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_user_of_address_is_sent_decoded() -> None:
    with server(200, b"[]") as (address, received):
        SchemaRegistry(f"http://al%40ice:se%2Fcret@{address}").ask("subjects")
    assert received == [f"Basic {base64.b64encode(b'al@ice:se/cret').decode()}"]


def test_rejection_has_code_and_reason_of_registry() -> None:
    with server(404, b'{"error_code": 40401, "message": "Subject x not found"}') as (address, _):
        with pytest.raises(RegistryRejection) as raised:
            SchemaRegistry(f"http://{address}").ask("subjects/x/versions")
        assert (raised.value.code, raised.value.status) == (40401, 404)
        assert raised.value.reason == "Subject x not found"


@pytest.mark.parametrize("body", [b"<html>", b"[1", b"\xff"])
def test_response_that_is_no_json_is_reported(body: bytes) -> None:
    why = "no valid response from the schema registry"
    with server(200, body) as (address, _), pytest.raises(SchemaError, match=why):
        SchemaRegistry(f"http://{address}").ask("subjects")


def test_reference_without_version_is_reported() -> None:
    answer = {"references": [{"name": "a", "subject": "b"}]}
    with pytest.raises(SchemaError, match="a reference without name, subject or version"):
        list(SchemaRegistry("http://127.0.0.1:1").referred(answer))
