"""The server side of OAUTHBEARER (RFC 7628, KIP-255).

The client sends its token in one message. If the token is invalid, the server responds with a JSON
error. The client acknowledges the error (0x01), and then the authentication fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .errors import AuthenticationError, ResponsePending

if TYPE_CHECKING:
    from .tokens import Tokens

# Maximum size of a client message in bytes: the largest token plus extensions.
MESSAGE_BYTES_MAX = 40 * 1024
# The only error that clients see (RFC 6750); the log has the reason.
INVALID_TOKEN = '{"status":"invalid_token"}'
# Acknowledgement of an error by the client.
SEEN = b"\x01"
_END = "\x01"
_FIELDS_MAX = 32
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_CREDENTIALS = re.compile(r"bearer +(?P<token>[-._~+/A-Za-z0-9]+=*)", re.IGNORECASE)


class OAuthServer:
    """One exchange with one client.

    Args:
        tokens: The token checks of the listener.
    """

    is_delegated = False

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._has_waited_for_keys = False
        self._rejection = ""
        # Authenticated user name; None before.
        self.name: str | None = None
        # Remaining lifetime of the token in seconds.
        self.lifetime_seconds: float | None = None

    def answer(self, message: bytes) -> bytes:
        """Return the response to the client's message.

        Raises:
            AuthenticationError: The message is malformed, or the token is invalid.
            ResponsePending: The key of the token is unknown; raised at most once.
        """
        from .tokens import BadToken, UnknownKey

        if self._rejection:  # the client acknowledged the error
            raise AuthenticationError(self._rejection, client_message=INVALID_TOKEN)
        if len(message) > MESSAGE_BYTES_MAX or self.name is not None:
            raise AuthenticationError("unexpected message")
        token, authorization = _parse(message)
        try:
            name, lifetime_seconds = self._tokens.check(token)
        except BadToken as error:
            if isinstance(error, UnknownKey) and not self._has_waited_for_keys:
                self._has_waited_for_keys = True
                raise ResponsePending(self._tokens.look_up) from None
            self._rejection = str(error)
            return INVALID_TOKEN.encode()
        if authorization not in ("", _escape(name)):
            raise AuthenticationError("the authorization identity differs from the user")
        self.name, self.lifetime_seconds = name, lifetime_seconds
        return b""


def first_message(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """Return the client's message with its token and extensions."""
    fields = {"auth": f"Bearer {token}", **(extensions or {})}
    pairs = "".join(f"{key}={value}{_END}" for key, value in fields.items())
    return f"n,,{_END}{pairs}{_END}".encode()


def _parse(message: bytes) -> tuple[str, str]:
    """Return the token and the authorization identity. Raises AuthenticationError."""
    malformed = AuthenticationError("malformed message")
    try:
        header, *fields = message.decode().split(_END, _FIELDS_MAX)
    except UnicodeDecodeError:
        raise malformed from None
    binding, _, rest = header.partition(",")
    authorization, comma, rest_after = rest.partition(",")
    if binding not in ("n", "y") or not comma or rest_after or fields[-2:] != ["", ""]:
        raise malformed
    found: dict[str, str] = {}
    for field in fields[:-2]:
        key, _, value = field.partition("=")
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or key in found:
            raise malformed
        found[key] = value
    credentials = _CREDENTIALS.fullmatch(found.get("auth", ""))
    if credentials is None or not (authorization == "" or authorization.startswith("a=")):
        raise malformed
    return credentials["token"], authorization.removeprefix("a=")


def _escape(name: str) -> str:
    """Escape a name for a message (RFC 5801)."""
    return name.replace("=", "=3D").replace(",", "=2C")
