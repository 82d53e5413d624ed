"""SaslHandshake, SaslAuthenticate: authentication of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kbroker.security.acls import Client
from kbroker.security.errors import AuthenticationError

from .context import Context, Peer
from .registry import handles

if TYPE_CHECKING:
    from kbroker.node.node import Node
    from kbroker.security.login import Login

# The same message for every cause, so that it does not reveal which users exist.
WRONG = "Authentication failed: the user or the password is wrong, or the SASL message is invalid"


@handles(ApiKey.SASL_HANDSHAKE, versions="0-1")
def sasl_handshake(ctx: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Begin an authentication with a SASL mechanism, and list the enabled mechanisms (KIP-43).

    An authenticated client with a limited session lifetime may reauthenticate (KIP-368).

    Errors: UNSUPPORTED_SASL_MECHANISM, after which the connection is closed. ILLEGAL_SASL_STATE if
    the listener does not use SASL, the session has no limited lifetime, or the client
    authenticated less than a second ago.
    """
    login = ctx.peer.login
    now = trio.current_time()
    if login is None or not login.may_begin(now):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    code = login.choose(request.mechanism, raw=ctx.version == 0, now=now)
    return SaslHandshakeResponse(error_code=code, mechanisms=[*login.mechanisms])


@handles(ApiKey.SASL_AUTHENTICATE, versions="0-2")
async def sasl_authenticate(
    ctx: Context, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Process a message of the chosen SASL mechanism and return the server's message (KIP-152).

    Versions: 1+ return the session lifetime (KIP-368).

    Errors: SASL_AUTHENTICATION_FAILED, sent after a delay (KIP-306). The connection is then
    closed. ILLEGAL_SASL_STATE if no authentication is in progress.
    """
    login = ctx.peer.login
    if login is None or not login.is_under_way:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
        )
    try:
        answer = await authenticate(ctx.node, ctx.peer, login, bytes(request.auth_bytes))
    except AuthenticationError as error:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=error.client_message or WRONG,
        )
    if not login.is_done:
        return SaslAuthenticateResponse(auth_bytes=answer)
    return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=login.lifetime_ms)


async def authenticate(node: Node, peer: Peer, login: Login, message: bytes) -> bytes:
    """Continue an authentication with a client's message of the SASL mechanism.

    Args:
        node: The node, for its audit log and the delay after a failure (KIP-306).
        peer: The client.
        login: The client's authentication, in which a mechanism was chosen.
        message: The client's message.

    Returns:
        The server's message.

    Raises:
        AuthenticationError: The message is rejected. Raised only after the delay of
            `connection.failed.authentication.delay.ms`.
    """
    try:
        answer = await login.answer(message, trio.current_time)
    except AuthenticationError:
        await trio.sleep(node.config.failed_login_delay_ms / 1000)
        raise
    if login.is_done:
        client = Client(login.principal, peer.host)
        node.audit.log_authentication(client, peer.listener, login.mechanism)
    return answer
