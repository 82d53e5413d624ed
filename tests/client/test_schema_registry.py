"""Client of a schema registry: redirects and malformed responses."""

from __future__ import annotations

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
