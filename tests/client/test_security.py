"""Security settings of kbroker's own client."""

from __future__ import annotations

import pytest

from kbroker.client.credentials import BadSecurity, Credentials
from kbroker.client.security import security_of

from ..security.tokens import (
    SHA_512,
)

NAMED_USER = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "bob",
    "sasl.password": "brush",
}


def test_client_settings_are_parsed_to_credentials() -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'a.ScramLoginModule required username="id" password="h" tokenauth="TRUE";',
    }
    assert security_of(settings).credentials == Credentials(
        SHA_512, "id", "h", is_delegation_token=True
    )
    plain = settings | {"sasl.jaas.config": settings["sasl.jaas.config"].replace("TRUE", "no")}
    assert security_of(plain).credentials == Credentials(SHA_512, "id", "h")
    with pytest.raises(BadSecurity, match=r"tokenauth=true needs sasl\.mechanism=SCRAM"):
        security_of(settings | {"sasl.mechanism": "PLAIN"})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"sasl.jaas.config": "a.b required;"}, "sasl.username and sasl.jaas.config exclude"),
        ({"sasl.password": ""}, "sasl.username needs sasl.password"),
        ({"sasl.username": ""}, "sasl.password needs sasl.username"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.username needs sasl.mechanism=PLAIN or SCRAM"),
    ],
)
def test_contradicting_user_settings_are_rejected(changed: dict[str, str], expected: str) -> None:
    with pytest.raises(BadSecurity, match=expected):
        security_of(NAMED_USER | changed)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_settings_of_librdkafka_are_accepted(mechanism: str) -> None:
    settings = NAMED_USER | {"sasl.mechanism": mechanism}
    assert security_of(settings).credentials == Credentials(mechanism, "bob", "brush")
