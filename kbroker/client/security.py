"""Client security: Kafka's client settings, SASL authentication and reauthentication."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from kbroker.security.errors import AuthenticationError, BadSettings
from kbroker.security.jaas import BadJaas, LoginModule, parse_jaas
from kbroker.security.oauth import SEEN, first_message
from kbroker.security.protocols import SecurityProtocol
from kbroker.security.scram import ScramClient, ScramMechanism
from kbroker.security.tls import client_context
from kbroker.security.users import OAUTHBEARER, PLAIN, SERVED

from .credentials import (
    JAAS,
    MECHANISM,
    PROTOCOL,
    BadSecurity,
    Credentials,
    Security,
    with_jaas,
)
from .errors import LoginRejected

if TYPE_CHECKING:
    from .connection import Ask, Connection

# Kafka clients require this class name to use `sasl.oauthbearer.token.endpoint.url`.
HANDLER, TOKEN_HANDLER = "sasl.login.callback.handler.class", "OAuthBearerLoginCallbackHandler"
# JAAS option: username and password are the ID and HMAC of a delegation token (KIP-48).
TOKENAUTH = "tokenauth"
_DEFAULTS = {PROTOCOL: "PLAINTEXT", "ssl.endpoint.identification.algorithm": "https"}

# Fraction of the session lifetime after which the client reauthenticates (KIP-368).
REAUTHENTICATE_FRACTION = 0.85


def security_of(settings: Mapping[str, str]) -> Security:
    """Return the TLS context and credentials from client settings.

    Args:
        settings: ``security.protocol``, ``ssl.*`` and ``sasl.*`` by name.

    Raises:
        BadSecurity: A setting is invalid or missing.
    """
    given = _DEFAULTS | with_jaas(settings)
    try:
        protocol = SecurityProtocol(given[PROTOCOL].upper())
    except ValueError:
        known = ", ".join(SecurityProtocol)
        raise BadSecurity(
            f"{PROTOCOL}={given[PROTOCOL]} is not supported (valid: {known})"
        ) from None
    tls = None
    if protocol.is_encrypted:
        try:
            tls = client_context(lambda name: given.get(name, ""))
        except BadSettings as error:
            raise BadSecurity(str(error)) from None
    return Security(tls, credentials_of(given) if protocol.has_login else None)


def credentials_of(given: Mapping[str, str]) -> Credentials:
    """Return the SASL credentials from ``sasl.*`` settings. Raises BadSecurity."""
    mechanism = given.get(MECHANISM, "").upper()
    if not mechanism:
        raise BadSecurity(f"{MECHANISM} is not set (valid: {', '.join(SERVED)})")
    if mechanism not in SERVED:
        raise BadSecurity(f"{MECHANISM}={mechanism} is not supported (valid: {', '.join(SERVED)})")
    if mechanism == OAUTHBEARER:
        return _oauth_credentials(given)
    if JAAS not in given:
        raise BadSecurity(
            f"{MECHANISM}={mechanism} needs sasl.username and sasl.password, or {JAAS}"
        )
    options = _parse_module(given[JAAS]).options
    name, password = options.get("username"), options.get("password")
    if not name or not password:
        raise BadSecurity(
            f"{JAAS}: set username=... and password=..., or sasl.username and sasl.password"
        )
    is_token = options.get(TOKENAUTH, "").lower() == "true"
    if is_token and mechanism == PLAIN:
        raise BadSecurity(
            f"{JAAS}: {TOKENAUTH}=true needs {MECHANISM}={' or '.join(ScramMechanism)}"
        )
    return Credentials(mechanism, name, password, is_delegation_token=is_token)


def _oauth_credentials(given: Mapping[str, str]) -> Credentials:
    from .tokens import TokenSource

    handler = given.get(HANDLER, TOKEN_HANDLER)
    if handler.rpartition(".")[2] != TOKEN_HANDLER:
        raise BadSecurity(f"{HANDLER}={handler} is not supported; remove the setting")
    module = _parse_module(given[JAAS]) if JAAS in given else LoginModule(OAUTHBEARER, {})
    try:
        return Credentials(OAUTHBEARER, "", "", TokenSource(given, module))
    except BadSettings as error:
        raise BadSecurity(str(error)) from None


def _parse_module(text: str) -> LoginModule:
    try:
        return parse_jaas(text)
    except BadJaas as error:
        raise BadSecurity(f"{JAAS}: {error}") from None


async def log_in(connection: Connection, credentials: Credentials) -> None:
    """Authenticate a connection with SASL, and schedule reauthentication (KIP-368).

    Args:
        connection: A new connection after `negotiate`.
        credentials: The client's credentials.

    Raises:
        LoginRejected: The broker rejects the credentials or does not prove that it knows the password.
    """

    async def authenticate(ask: Ask) -> None:
        lifetime_ms = await _log_in(ask, credentials)
        connection.reauthenticate_after(
            lifetime_ms * REAUTHENTICATE_FRACTION / 1000 if lifetime_ms else math.inf, authenticate
        )

    await authenticate(connection.ask)


async def _log_in(ask: Ask, credentials: Credentials) -> int:
    """Return the session lifetime in ms; 0 if it does not expire."""
    mechanism, name, password, tokens, is_token = credentials
    token = None if tokens is None else await tokens.token()
    hello = await ask(SaslHandshakeRequest(mechanism=mechanism), oldest=1)
    if hello.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise LoginRejected("the listener does not use SASL; remove SASL_ from security.protocol")
    if hello.error_code:
        offered = ", ".join(hello.mechanisms) or "none"
        raise LoginRejected(f"SASL mechanism {mechanism} is not enabled (valid: {offered})")
    try:
        if token is not None:
            answer = await _send_sasl(ask, first_message(token))
            if answer.auth_bytes:
                # The response is the error; the broker fails the exchange after this reply (RFC 7628).
                await _send_sasl(ask, SEEN)
        elif mechanism == PLAIN:
            answer = await _send_sasl(ask, f"\0{name}\0{password}".encode())
        else:
            client = ScramClient(ScramMechanism(mechanism), name, password, is_token=is_token)
            first = await _send_sasl(ask, client.first())
            answer = await _send_sasl(ask, client.final(bytes(first.auth_bytes)))
            client.check(bytes(answer.auth_bytes))
    except AuthenticationError as error:
        subject = name or "this token"
        raise LoginRejected(f"cannot authenticate as {subject}: {error}") from None
    return int(answer.session_lifetime_ms)


async def _send_sasl(ask: Ask, message: bytes) -> SaslAuthenticateResponse:
    answer: SaslAuthenticateResponse = await ask(SaslAuthenticateRequest(auth_bytes=message))
    if answer.error_code:
        raise AuthenticationError(answer.error_message or f"error {answer.error_code}")
    return answer
