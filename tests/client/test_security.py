"""Security settings of kbroker's own client."""

from __future__ import annotations

import pytest

from kbroker.client.credentials import Credentials
from kbroker.client.security import BadSecurity, security_of

from ..security.tokens import (
    SHA_512,
)


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
