"""How a client reaches brokers that do not trust everybody: Kafka's own client settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from kbroker.security.errors import BadSettings, LoginFailed
from kbroker.security.jaas import BadJaas, parse_jaas
from kbroker.security.protocols import SecurityProtocol
from kbroker.security.scram import ScramClient, ScramMechanism
from kbroker.security.tls import client_context
from kbroker.security.users import PLAIN, SERVED

from .credentials import Credentials, Security

if TYPE_CHECKING:
    from .connection import Connection

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
_DEFAULTS = {PROTOCOL: "PLAINTEXT", "ssl.endpoint.identification.algorithm": "https"}


class BadSecurity(ValueError):
    """Settings by which nobody can connect; the text names the setting and what to do."""


def security_of(settings: Mapping[str, str]) -> Security:
    """What ``security.protocol``, ``ssl.*`` and ``sasl.*`` say. Raises BadSecurity."""
    given = _DEFAULTS | dict(settings)
    try:
        protocol = SecurityProtocol(given[PROTOCOL].upper())
    except ValueError:
        known = ", ".join(SecurityProtocol)
        raise BadSecurity(f"{PROTOCOL}={given[PROTOCOL]}: there are {known}") from None
    tls = None
    if protocol.is_encrypted:
        try:
            tls = client_context(lambda name: given.get(name, ""))
        except BadSettings as error:
            raise BadSecurity(str(error)) from None
    return Security(tls, _credentials(given) if protocol.has_login else None)


def _credentials(given: Mapping[str, str]) -> Credentials:
    mechanism = given.get(MECHANISM, "").upper()
    if mechanism not in SERVED:
        raise BadSecurity(f"{MECHANISM}={mechanism}: there are {', '.join(SERVED)}")
    try:
        options = parse_jaas(given.get(JAAS, "")).options
    except BadJaas as error:
        raise BadSecurity(f"{JAAS}: {error}") from None
    name, password = options.get("username"), options.get("password")
    if not name or not password:
        raise BadSecurity(f"{JAAS}: username=... and password=... are missing in it")
    return Credentials(mechanism, name, password)


async def log_in(connection: Connection, credentials: Credentials) -> None:
    """Show who asks, before anything else but ApiVersions is asked.

    Raises OSError when that fails, or the broker does not show that it knows the password.
    """
    mechanism, name, password = credentials
    hello = await connection.ask(SaslHandshakeRequest(mechanism=mechanism), oldest=1)
    if hello.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise OSError("nobody logs in there: leave SASL_ out of security.protocol")
    if hello.error_code:
        offered = ", ".join(hello.mechanisms) or "none"
        raise OSError(f"does not take {mechanism}; it takes {offered}")
    try:
        if mechanism == PLAIN:
            await _tell(connection, f"\0{name}\0{password}".encode())
            return
        client = ScramClient(ScramMechanism(mechanism), name, password)
        final = client.final(await _tell(connection, client.first()))
        client.check(await _tell(connection, final))
    except LoginFailed as error:
        raise OSError(f"does not let {name} in: {error}") from None


async def _tell(connection: Connection, message: bytes) -> bytes:
    answer: Any = await connection.ask(SaslAuthenticateRequest(auth_bytes=message))
    if answer.error_code:
        raise LoginFailed(answer.error_message or f"error {answer.error_code}")
    return bytes(answer.auth_bytes)
