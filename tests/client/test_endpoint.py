"""Addresses of brokers."""

from __future__ import annotations

import pytest

from kbroker.client.endpoint import Endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", [("localhost", 9092)]),
        ("localhost:19092", [("localhost", 19092)]),
        ("broker1, broker2:9093", [("broker1", 9092), ("broker2", 9093)]),
        ("[::1]", [("::1", 9092)]),
        ("[fe80::1]:9094,127.0.0.1", [("fe80::1", 9094), ("127.0.0.1", 9092)]),
    ],
)
def test_bootstrap_address_without_port_gets_default_port(
    text: str, expected: list[tuple[str, int]]
) -> None:
    assert Endpoint.parse_bootstrap(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected HOST[:PORT]"),
        ("a,,b", "expected HOST[:PORT]"),
        (":9092", "expected HOST[:PORT]"),
        ("two words", "expected HOST[:PORT]"),
        ("[::1", "needs brackets"),
        ("[]:1", "expected HOST[:PORT]"),
        ("[::1]9092", "expected HOST[:PORT]"),
        ("host/path", "expected HOST[:PORT]"),
        ("host:", "a port from 1 to 65535"),
        ("host:0", "a port from 1 to 65535"),
        ("host:65536", "a port from 1 to 65535"),
        ("host:kafka", "a port from 1 to 65535"),
        ("::1", "an IPv6 address needs brackets, as in [::1]:9092"),
        ("kafka://host:9092", "without a protocol"),
    ],
)
def test_invalid_bootstrap_address_raises_error_that_names_problem(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="invalid address") as error:
        Endpoint.parse_bootstrap(text)
    assert reason in str(error.value)
