"""Credentials and TLS settings of a client connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

    from .tokens import TokenSource


class Credentials(NamedTuple):
    """SASL mechanism with a user name and password, or with a source of bearer tokens.

    With `is_delegation_token`, name and password are the token ID and HMAC (KIP-48).
    """

    mechanism: str
    name: str
    password: str
    tokens: TokenSource | None = None
    is_delegation_token: bool = False


class Security(NamedTuple):
    """TLS context and SASL credentials of a client; None for plaintext or no authentication."""

    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None


PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
# Settings of librdkafka for the user name and the password.
USERNAME, PASSWORD = "sasl.username", "sasl.password"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class BadSecurity(ValueError):
    """Invalid security settings; the message names the setting and the fix."""


def with_jaas(settings: Mapping[str, str]) -> dict[str, str]:
    """Replace librdkafka's `sasl.username` and `sasl.password` by Kafka's `sasl.jaas.config`.

    Args:
        settings: Client settings by name.

    Returns:
        The settings, unchanged if they have neither name.

    Raises:
        BadSecurity: Only one of both is given, or they contradict another setting.
    """
    if not settings.keys() & {USERNAME, PASSWORD}:
        return dict(settings)
    if JAAS in settings:
        raise BadSecurity(f"{USERNAME} and {JAAS} exclude each other; remove one of them")
    name, password = settings.get(USERNAME), settings.get(PASSWORD)
    if not name or not password:
        given, missing = (PASSWORD, USERNAME) if not name else (USERNAME, PASSWORD)
        raise BadSecurity(f"{given} needs {missing}; set both")
    mechanism = settings.get(MECHANISM, "").upper()
    if mechanism and mechanism != "PLAIN" and not mechanism.startswith("SCRAM-"):
        raise BadSecurity(f"{USERNAME} needs {MECHANISM}=PLAIN or SCRAM-SHA-512, not {mechanism}")
    from kbroker.security.jaas import jaas_text

    module = _SCRAM_MODULE if mechanism.startswith("SCRAM-") else _PLAIN_MODULE
    text = jaas_text(module, {"username": name, "password": password})
    others = {key: each for key, each in settings.items() if key not in (USERNAME, PASSWORD)}
    return {**others, JAAS: text}


# Plaintext without authentication.
OPEN = Security()
